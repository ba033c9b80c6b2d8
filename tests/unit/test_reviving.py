"""Dead letters as messages: what they are when their tasks start anew."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq import reviving
from celery_delayq.errors import RecordError
from celery_delayq.keys import Layout
from celery_delayq.letters import Buried, DeadLetter
from celery_delayq.message import Due, Entry, Record, encode
from celery_delayq.reviving import Changes, revived

NONCE, RUN = "f" * 32, "0" * 32

#: What a sender may have put beside what is known, in a spelling that misleads.
TEXTS = st.sampled_from(
    ["", "plain", '"retries": 3, ', '"delivery_tag": "tag"', "\\", '\\"', "ü\0", '"delayq": {}, ']
)
OWN = st.fixed_dictionaries(
    {},
    optional={
        "label": st.just("id 0123456789abcdef 0 -"),
        "eta": st.just("2026-01-01T00:00:00+00:00"),
        "retry": st.just({"max": 5}),
        "budget": st.just(["root", 5]),
        "context": TEXTS,
        "deliveries": st.just(2),
    },
)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Messages as Celery and kombu order what is in them, and as others do."""
    headers = {
        "task": draw(st.sampled_from(["shop.mail", "shop.mail", 'a "task"'])),
        "id": draw(st.sampled_from(["id", "id", '"retries": 3, '])),
        "shadow": draw(st.sampled_from([None, "other", '"task": '])),
        "eta": draw(st.sampled_from([None, None, "2026-01-01T00:00:00+00:00"])),
        "expires": draw(st.sampled_from([None, None, "2020-01-01", "2999-01-01"])),
        "group": draw(st.sampled_from([None, "group"])),
        "group_index": draw(st.sampled_from([None, 3])),
        "retries": draw(st.sampled_from([0, 3, 31, None, 3.5])),
        "timelimit": [None, None],
        "argsrepr": draw(TEXTS),
        "stamps": draw(st.dictionaries(TEXTS, st.just(3)) | st.just({"retries": 3, "more": 1})),
    }
    properties: dict[str, Any] = {
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": draw(st.sampled_from([0, 3, 9])),
        "body_encoding": "base64",
        "delivery_tag": draw(st.sampled_from(["tag", "tag", 'a "tag"'])),
    }
    own = draw(st.none() | OWN)
    if own is not None and draw(st.booleans()):
        properties = {"delayq": own, **properties}
    elif own is not None:
        properties["delayq"] = own
    if draw(st.integers(0, 3)) == 0:
        headers = dict(draw(st.permutations([*headers.items()])))
        properties = dict(draw(st.permutations([*properties.items()])))
    message = {"body": draw(TEXTS), "headers": headers, "properties": properties}
    return dict(draw(st.permutations([*message.items()])))


def letter_of(text: bytes, details: bytes = b"") -> DeadLetter:
    return DeadLetter.of("celery", Buried("id", 1, 0, "failed", text, details, b""))


def parsed(entry: Entry) -> Any:
    record = Record.unpack(entry.data)
    message = json.loads(record.message)
    if message["properties"].get("delayq") == {}:
        del message["properties"]["delayq"]
    return entry._replace(data=b""), record._replace(message=b""), message


@given(messages(), st.booleans())
def test_what_is_replaced_in_a_message_is_what_would_be_encoded(
    message: dict[str, Any], compact: bool
) -> None:
    separators = (",", ":") if compact else None
    letter = letter_of(json.dumps(message, separators=separators).encode())

    quick = revived(letter, Layout(), Due(0), Changes(), NONCE, RUN)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reviving, "start_anew", lambda *_: None)
        assert parsed(quick) == parsed(revived(letter, Layout(), Due(0), Changes(), NONCE, RUN))


@pytest.mark.parametrize("argsrepr", ["()", "('Grüße, 3 €',)"])
@pytest.mark.parametrize("sent", ["at once", "with a countdown"])
def test_what_celery_sends_is_not_decoded(
    sent: str, argsrepr: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Celery("shop", set_as_current=False) as app:
        made = app.amqp.as_task_v2("id", "shop.mail", argsrepr=argsrepr, retries=3, origin="here")
    properties: dict[str, Any] = {
        **made.properties,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 3,
        "body_encoding": "base64",
        "delivery_tag": "tag",
    }
    message = {"body": "b", "headers": made.headers, "properties": properties}
    expected = {**message, "headers": {**made.headers, "retries": 0}}
    if sent == "with a countdown":
        own = {"label": "id 0123456789abcdef 0 -", "eta": "2026-01-01", "retry": {"max": 3}}
        message = {"properties": {}, **message} | {"properties": {"delayq": own, **properties}}
        properties = {"delayq": {"retry": {"max": 3}}, **properties}
        expected = {"properties": {}, **expected}
    monkeypatch.setattr(Entry, "of", None)

    entry = revived(letter_of(encode(message)), Layout(), Due(0), Changes(), NONCE, RUN)

    assert entry[:3] == ("id", Due(0), 3)
    record = Record.unpack(entry.data)
    assert record[:3] == (3, NONCE[:16], "shop.mail")
    expected["properties"] = {**properties, "delivery_tag": NONCE}
    assert record.message == encode(expected)


@pytest.mark.parametrize("cut", [2, 30, 200])
def test_what_was_cut_off_is_no_message(cut: int) -> None:
    with Celery("shop", set_as_current=False) as app:
        headers = app.amqp.as_task_v2("id", "shop.mail").headers
    tail = {"priority": 3, "body_encoding": "base64", "delivery_tag": "tag"}
    properties = {"delivery_info": {}, **tail}
    text = encode({"body": "b", "properties": properties, "headers": headers})

    with pytest.raises(RecordError):
        revived(letter_of(text[:-cut]), Layout(), Due(0), Changes(), NONCE, RUN)


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
    return letter_of(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [("('ann',)", "('bob',)"), ("(…)", "…"), ("('a secret',)", "…"), (None, "…")],
)
def test_new_arguments_are_described_only_where_the_old_ones_were(
    before: str | None, after: str
) -> None:
    entry = revived(described(before), Layout(), Due(0), Changes(args=["bob"]), NONCE, RUN)

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
    letter = letter_of(text % properties)

    entry = revived(letter, Layout(), Due(0), Changes(), NONCE, RUN)

    message = json.loads(Record.unpack(entry.data).message)
    assert message["headers"]["retries"] == 0
    assert 3 in (*message["headers"].get("stamps", {}).values(), *message.get("x", {}).values())


def test_an_id_that_no_text_can_have_is_refused() -> None:
    headers = {"task": "t", "id": "\ud800", "retries": 3}
    properties = {"delivery_tag": "tag", "delivery_info": {}}
    letter = letter_of(json.dumps({"headers": headers, "properties": properties}).encode())

    with pytest.raises(ValueError, match="surrogates"):
        revived(letter, Layout(), Due(0), Changes(), NONCE, RUN)
