"""Dead letters as messages: what they are when their tasks start anew."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_delayq.deadletters.replay import ReplayChanges, replay_entry
from celery_delayq.errors import RecordError
from celery_delayq.model.changes import MessageChanges, MessageEditor
from celery_delayq.model.dead_letter import DeadLetter, DeadLetterRecord
from celery_delayq.model.envelope import Due, Record
from celery_delayq.store.keys import Layout
from celery_delayq.utils.message_json import encode

MESSAGE_ID, RUN = "f" * 32, "0" * 32


def dead_letter_of(text: bytes, details: bytes = b"") -> DeadLetter:
    return DeadLetter.of("celery", DeadLetterRecord("id", 1, 0, "failed", text, details, b""))


@pytest.mark.parametrize("cut", [2, 30, 200])
def test_what_was_cut_off_is_no_message(cut: int) -> None:
    with Celery("shop", set_as_current=False) as app:
        headers = app.amqp.as_task_v2("id", "shop.mail").headers
    tail = {"priority": 3, "body_encoding": "base64", "delivery_tag": "tag"}
    properties = {"delivery_info": {}, **tail}
    text = encode({"body": "b", "properties": properties, "headers": headers})

    with pytest.raises(RecordError):
        replay_entry(
            dead_letter_of(text[:-cut]), Layout(), Due(0), ReplayChanges(), MESSAGE_ID, RUN
        )


# -- with other arguments


def described(argsrepr: str | None) -> DeadLetter:
    headers = {"task": "shop.mail", "id": "id", "argsrepr": argsrepr, "kwargsrepr": "{'by': 1}"}
    message = {
        "body": json.dumps([["ann"], {"by": 1}, {}]),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"delivery_info": {"routing_key": "celery"}, "delivery_tag": "tag"},
    }
    return dead_letter_of(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [("('ann',)", "('bob',)"), ("(…)", "…"), ("('a secret',)", "…"), (None, "…")],
)
def test_new_arguments_are_described_only_where_the_old_ones_were(
    before: str | None, after: str
) -> None:
    with Celery("shop", set_as_current=False) as app:
        editor = MessageEditor(app, MessageChanges(args=["bob"]), lambda _: None)
        changes = ReplayChanges(editor)
        entry = replay_entry(described(before), Layout(), Due(0), changes, MESSAGE_ID, RUN)

    headers = json.loads(Record.unpack(entry.data).message)["headers"]
    assert (headers["argsrepr"], headers["kwargsrepr"]) == (after, "{'by': 1}")


@pytest.mark.parametrize(
    "text",
    [
        b'{"headers": {"task": "t", "id": "i", "retries":3, "stamps": {"retries": 3}}, %b}',
        b'{"headers": {"task": "t", "id": "i", "retries":3}, "x": {"retries": 3}, %b}',
        b'{"headers": {"task": "t", "id": "i", "\\u0072etries":3}, "x": {"retries": 3}, %b}',
    ],
)
def test_other_spellings_in_one_message_mislead_nobody(text: bytes) -> None:
    properties = b'"properties": {"delivery_tag": "tag", "delivery_info": {}}'
    dead_letter = dead_letter_of(text % properties)

    entry = replay_entry(dead_letter, Layout(), Due(0), ReplayChanges(), MESSAGE_ID, RUN)

    message = json.loads(Record.unpack(entry.data).message)
    assert message["headers"]["retries"] == 0
    assert 3 in (*message["headers"].get("stamps", {}).values(), *message.get("x", {}).values())


def test_an_id_that_no_text_can_have_is_refused() -> None:
    headers = {"task": "t", "id": "\ud800", "retries": 3}
    properties = {"delivery_tag": "tag", "delivery_info": {}}
    dead_letter = dead_letter_of(
        json.dumps({"headers": headers, "properties": properties}).encode()
    )

    with pytest.raises(ValueError, match="surrogates"):
        replay_entry(dead_letter, Layout(), Due(0), ReplayChanges(), MESSAGE_ID, RUN)
