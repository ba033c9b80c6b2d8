"""Arguments of tasks in ``--json``: JSON values, and what is given where they have no such form."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from tests.support.cli import CommandLine

NOON = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)

#: Arguments, and what JSON has of them; a time is as kombu writes it, which `dead replay` takes.
PLAIN = ("Ann's", 2**70, {"b": [None, True]}, "Grüße \x1b")
NOON_JSON = {"__type__": "datetime", "__value__": NOON.isoformat()}

CASES = [
    ("json", PLAIN, {"n": 1.5}, ([*PLAIN], {"n": 1.5})),
    ("json", (NOON,), {}, ([NOON_JSON], {})),
    ("json", (float("nan"),), {}, (None, None)),
    ("yaml", (1, "two"), {"n": [3]}, ([1, "two"], {"n": [3]})),
    ("yaml", (NOON,), {}, (None, None)),
    ("msgpack", (1, "two"), {"n": [3]}, ([1, "two"], {"n": [3]})),
    ("msgpack", (b"\xff",), {}, (None, None)),
    ("pickle", (1,), {}, (None, None)),
]


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize(("serializer", "args", "kwargs", "expected"), CASES)
def test_arguments_are_json_values(
    app: Celery,
    cli: CommandLine,
    delayq: DelayQ,
    serializer: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    expected: tuple[Any, Any],
    compression: str | None,
) -> None:
    app.send_task(
        "shop.mail",
        args,
        kwargs,
        task_id="one",
        countdown=3600,
        serializer=serializer,
        compression=compression,
    )
    [entry] = delayq.entries()
    message = json.dumps(entry.message).encode()
    delayq.store.dead_letters.add("celery", "dead", "failed", message)

    told = (
        *cli("get", "one", "--json").json["entries"],
        *cli("list", "--json").json["entries"],
        *cli("list", "--all", "--json").json["entries"],
        *cli("dead", "show", "dead", "--json").json["dead_letters"],
        *cli("dead", "list", "--json").json["dead_letters"],
    )

    for each in told:
        assert (each["args"], each["kwargs"]) == expected
        assert each["argsrepr"] == entry.headers["argsrepr"]
        assert each["kwargsrepr"] == entry.headers["kwargsrepr"]


def test_what_a_script_reads_is_what_replay_takes(
    app: Celery, cli: CommandLine, delayq: DelayQ
) -> None:
    app.send_task("shop.mail", (NOON, "Ann's"), task_id="one", countdown=3600)
    [entry] = delayq.entries()
    delayq.store.dead_letters.add("celery", "dead", "failed", json.dumps(entry.message).encode())
    delayq.cancel("one")
    args = json.dumps(cli("dead", "show", "dead", "--json").json["dead_letters"][0]["args"])

    assert cli("dead", "replay", "dead", "--args", args, "--in", "1h").code == 0

    [entry] = delayq.entries()
    assert entry.args == [NOON, "Ann's"]


def test_what_is_no_message_has_no_arguments(cli: CommandLine, delayq: DelayQ) -> None:
    old = json.dumps({"task": "shop.mail", "args": [1], "kwargs": {}, "id": "old"})
    rotten = {"body": old, "content-type": "application/json", "content-encoding": "utf-8"}
    bodies = (b"\xff", b"[]", json.dumps({**rotten, "headers": {}, "properties": {}}).encode())
    for n, body in enumerate(bodies):
        delayq.store.dead_letters.add("celery", f"{n}", "unreadable", body)

    for told in cli("dead", "list", "--json").json["dead_letters"]:
        assert [told[name] for name in ("args", "kwargs", "argsrepr", "kwargsrepr")] == [None] * 4
