"""No error about a URL or a path of a user shows its password."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import DelayQError
from celery_delayq.periodic import exported
from celery_delayq.periodic.importers import beat, django, redbeat
from celery_delayq.settings import Settings
from celery_delayq.spark.access import Access
from celery_delayq.spark.jdbc import check_url as check_jdbc_url
from celery_delayq.transfer import dead_letter_archive, jsonl
from celery_delayq.transfer.schedule_row import SCHEDULE
from celery_delayq.transport import url as broker
from celery_delayq.utils.credentials import check_folder, has_password, hide
from celery_delayq.webhook import Webhook, check_url

SECRET = "hunter2"

#: What may be given where a URL belongs, each with the secret in it.
GIVEN = {
    "no scheme": f"a:{SECRET}@h/x",
    "no scheme, @ in the password": f"a:b@{SECRET}@h/x",
    "no scheme, / in the password": f"a:b/{SECRET}@h/x",
    "no user": f":{SECRET}@h/x",
    "unknown scheme": f"mongodb://a:{SECRET}@h/x",
    "misspelt scheme": f"postgresq://a:{SECRET}@h/x",
    "scheme behind": f"a:{SECRET}@redis://h/x",
    "port that is none": f"redis://a:{SECRET}@h:port/x",
    "# in the password": f"redis://a:b#{SECRET}@h/x",
    "several": f"sentinel://a:{SECRET}@h;b:{SECRET}@i",
}


def options(given: Any) -> Mapping[str, Any]:
    return {"delayq": given}


def write(given: str) -> None:
    with jsonl.writing(given, SCHEDULE):
        pass


def read(given: str) -> None:
    with jsonl.reading(given, SCHEDULE) as lines:
        list(lines)


#: What takes something of a user; all of it refuses what is above.
TAKERS: dict[str, Callable[[str], object]] = {
    "file to write": write,
    "file to read": read,
    "archive": dead_letter_archive.database_of,
    "file of celery beat": lambda given: beat.entries(Celery(set_as_current=False), given),
    "list of entries": lambda given: list(exported.entries(Celery(set_as_current=False), given)),
    "database of Django": lambda given: list(django.entries(Celery(set_as_current=False), given)),
    "Redis of RedBeat": lambda given: list(redbeat.entries(Celery(set_as_current=False), given)),
    "broker": broker.plain_url,
    "settings": lambda given: Settings.from_options(options(given)),
    "a setting": lambda given: Settings.from_options(options({"lease": given})),
    "a switch": lambda given: Settings.from_options(options({"dispatch": given})),
    "queues": lambda given: Settings.from_options(options({"queues": given})),
    "a queue": lambda given: Settings.from_options(options({"queues": {"q": given}})),
    "limits of a queue": lambda given: Settings.from_options(
        options({"queues": {"q": {"dead_letters_archive": given}}})
    ),
    "app": lambda given: DelayQ(given),
    "webhook": lambda given: check_url(given, Webhook(allow=["h"])),
    "option url of Spark": lambda given: Access.of({"url": given}),
    "option url of JDBC": check_jdbc_url,
    "folder of Spark": check_folder,
}

#: What is given is right there.
RIGHT = {("broker", "several")}


@pytest.mark.parametrize(
    ("taker", "given"), [pair for pair in product(TAKERS, GIVEN) if pair not in RIGHT]
)
def test_an_error_about_a_url_shows_no_password(
    taker: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DelayQError) as caught:
        TAKERS[taker](GIVEN[given])

    text = "".join(traceback.format_exception(caught.value, chain=True))
    told = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert SECRET not in told
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["./a:b@h", "plain@host.jsonl", "12:30.jsonl", "a@12:30"])
def test_file_names_that_are_no_urls_are_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with jsonl.writing(name, SCHEDULE) as out:
        out.end(0, 0)

    assert [path.name for path in tmp_path.iterdir()] == [Path(name).name]
    assert jsonl.writing(io.BytesIO(), SCHEDULE) is not None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://a:{SECRET}@h:1/0", "'redis://…@h:1/0'"),
        (f"a:{SECRET}@h/x", "'…@h/x'"),
        ("redis://h/0", "'redis://h/0'"),
        (f"redis://h/0?password={SECRET}", "'redis://h/0'"),
        (b"redis://h", "of type bytes"),
    ],
)
def test_a_url_is_shown_without_parts_that_may_be_secret(url: Any, shown: str) -> None:
    assert hide(url) == shown


@pytest.mark.parametrize("url", ["redis://h:1/0", "h:1", "env:NAME", "redis://user@h", "/a/b"])
def test_a_url_without_a_password_is_recognised(url: str) -> None:
    assert not has_password(url)
