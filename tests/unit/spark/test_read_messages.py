"""Messages as columns, whoever wrote them."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from datetime import datetime, timezone
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_delayq.model.scheduled import moment
from celery_delayq.model.script_values import PAUSED_OFFSET_MS
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.spark.read.tables import TABLE_COLUMNS
from tests.lua.bench import FAR, labelled

REST = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def message(id: Any = "a", args: Any = (), kwargs: Any = None, **more: Any) -> bytes:
    """Return a message as Celery makes it; *more* are headers, ``own`` is our data."""
    own = more.pop("own", {"label": f"{id} m1 0 -"})
    body = json.dumps([args, kwargs or {}, REST]).encode()
    properties = {"delayq": own, "body_encoding": "base64", "delivery_tag": "tag"}
    return json.dumps(
        {
            "properties": properties,
            "body": b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": "mail.remind",
                "id": id,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": id,
                "origin": "gen1@host",
                **more,
            },
        }
    ).encode()


def rows_of(*messages: bytes) -> list[dict[str, Any]]:
    """Return messages of a ready list as Spark gets them."""
    rows = TableRows(TABLE_COLUMNS["ready"])
    found = [(0, message) for message in messages]
    page = rows.tracked("mail", "ready", found, [None] * len(found), None)
    return rows.batch(page).to_pylist()  # type: ignore[no-any-return]


NINE = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (
            message("a", (1, "x"), {"y": [None, {"z": "}]"}]}),
            {"args": '[1, "x"]', "kwargs": '{"y": [null, {"z": "}]"}]}', "headers": []},
        ),
        (
            message("b", ("], {", '"', "\\"), {"é": "ü"}),
            {"args": r'["], {", "\"", "\\"]', "kwargs": r'{"\u00e9": "\u00fc"}'},
        ),
        (
            message("c", own={"label": "c m1 0 dkey", "eta": "2030-01-31T09:00:00.123456+00:00"}),
            {"unique_key": "key", "eta": NINE.replace(microsecond=123456)},
        ),
        (message("d", own={"eta": "2030-01-31T09:00:00"}), {"unique_key": None, "eta": NINE}),
        (message("e", own={"context": '{"user":"ada","n":[1]}'}),
         {"context": [("user", "ada"), ("n", "[1]")]}),
        (message("f", expires="2030-01-31T10:00:00+01:00", group="g", parent_id="p"),
         {"expires": NINE, "group_id": "g", "parent_id": "p", "root_id": "f"}),
        (message("g", own={"group": "of a chain"}), {"group_id": "of a chain"}),
        (message("h", traceparent="00-1-2-01", level=7, tenant={"a": 1}, none=None),
         {"headers": [("level", "7"), ("tenant", '{"a": 1}'), ("traceparent", "00-1-2-01")]}),
        (message("i", own={"unique": {"key": "dfrom the sender"}}),
         {"unique_key": "from the sender"}),
        (message("nul \0", args=("\0",)), {"id": "nul \0", "args": r'["\u0000"]'}),
        (message("\U0001f600"), {"id": "\U0001f600"}),
        (message("\ud800", tenant="\ud800"),
         {"id": r"\ud800", "headers": [("tenant", r"\ud800")]}),
        (message(7), {"id": "7"}),
        (message("a", retries=2**31 - 1), {"retries": 2**31 - 1}),
        (message("a", retries=2**31), {"retries": None}),
        (message("a", own=5), {"id": "a", "eta": None}),
        (b'{"a":\n' + b"1, " + message("a")[1:], {"id": "a"}),
    ],
)  # fmt: skip
def test_a_message_is_read_whoever_wrote_it(data: bytes, columns: dict[str, Any]) -> None:
    [row] = rows_of(data)

    assert {name: row[name] for name in columns} == columns
    assert row["raw"] is None


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"{}",
        b"[]",
        b"{}{}",
        b'{"headers": 1, "properties": {}}',
        b'{"headers": {"id": null}, "properties": {}}',
        b'{"headers": {"id": "a"}}',
        message("a") + b"}",
        message("a") + message("b"),
        message("a")[:-1],
        b"\xff\xfe",
        b'{"headers": {"id": "\xff"}, "properties": {}}',
        b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"headers": {"id": "a", "x": ' + b'{"a":' * 90_000 + b"1" + b"}" * 90_002,
        message("a").replace(b"properties", b"\xc3\xa4"),
    ],
)
def test_one_odd_message_leaves_the_others_as_they_are(odd: bytes) -> None:
    before, row, behind = rows_of(message("a"), odd, message("b"))

    assert (before["id"], row["id"], behind["id"]) == ("a", None, "b")
    assert (before["raw"], row["raw"], behind["raw"]) == (None, odd, None)


@pytest.mark.parametrize(
    ("body", "args", "kwargs"),
    [
        ('[[1], {"a": 2}, {"callbacks": null}]', "[1]", '{"a": 2}'),
        ('[[1],{"a":2},{}]', "[1]", '{"a": 2}'),
        ("no JSON", None, None),
        ("[[1]", None, None),
        ("[1, 2, 3]", None, None),
        ('[[NaN], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
         "[NaN]", "{}"),
    ],
)  # fmt: skip
def test_bodies_are_read_however_they_are_spelled(
    body: str, args: str | None, kwargs: str | None
) -> None:
    usual = json.loads(message("a"))
    plain = {**usual, "body": body, "properties": {"delivery_tag": "tag"}}
    coded = {**usual, "body": b64encode(body.encode()).decode()}

    for each in (plain, coded):
        [row] = rows_of(json.dumps(each).encode())
        assert (row["args"], row["kwargs"], row["raw"]) == (args, kwargs, None)


def test_messages_cut_anywhere_are_read_or_given_as_they_are() -> None:
    chance = random.Random(7)
    usual = message("a", (1, "x"), {"y": 1}, eta="2030-01-31T09:00:00", own={"label": "a m 0 dk"})
    for _ in range(300):
        data = bytearray(usual)
        for _ in range(chance.randint(1, 3)):
            where = chance.randrange(len(data))
            how = chance.choice(["cut", "swap", "take"])
            if how == "cut":
                del data[where:]
            elif how == "swap":
                data[where] = chance.choice(b'{}[]",:0a\n\\')
            else:
                del data[where : where + chance.randint(1, 9)]
            data = data or bytearray(b" ")
        [row] = rows_of(bytes(data))
        assert (row["id"] is None) == (row["raw"] == bytes(data))


@pytest.mark.parametrize(
    ("lane", "offset", "state"),
    [
        ("", 0, "scheduled"),
        ("", PAUSED_OFFSET_MS, "paused"),
        ("stripe:ada", 0, "scheduled"),
        ("stripe:ada", PAUSED_OFFSET_MS, "held"),
    ],
)
def test_the_state_of_an_entry(lane: str, offset: int, state: str) -> None:
    entry = labelled("a", lane=lane)

    [row] = TableRows(TABLE_COLUMNS["scheduled"]).scheduled(
        "mail", [(b"a", entry.data, b"%d" % (FAR + offset))]
    )

    assert (row["state"], row["due"]) == (state, moment(FAR))
