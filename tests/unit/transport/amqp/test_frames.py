"""The frames of a publish are those that py-amqp writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message, spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import InvalidOption
from celery_delayq.transport.amqp.frames import encoded, publish_frames

FRAME_MAX = 4096
TEXTS = st.text(max_size=60)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | TEXTS
    | st.floats(width=32, allow_nan=False, allow_infinity=False),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=6,
)
MESSAGES = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=3 * FRAME_MAX) | TEXTS,
        "application_headers": st.dictionaries(TEXTS, VALUES, max_size=8),
    },
    optional={
        "content_type": TEXTS,
        "content_encoding": st.just("utf-8"),
        "priority": st.integers(0, 255),
        "delivery_mode": st.just(2),
        "correlation_id": TEXTS,
        "message_id": TEXTS,
    },
)


def by_py_amqp(message: Message, exchange: str, routing_key: str, *, mandatory: bool) -> bytes:
    written: list[bytes] = []
    connection: Any = SimpleNamespace(frame_max=FRAME_MAX, bytes_sent=0)
    transport: Any = SimpleNamespace(write=lambda data: written.append(bytes(data)))
    write = frame_writer(connection, transport)
    arguments = dumps("Bssbb", (0, exchange, routing_key, mandatory, False))
    write(1, 7, spec.Basic.Publish, arguments, message)
    return b"".join(written)


@given(given=MESSAGES, exchange=TEXTS, routing_key=TEXTS)
def test_they_are_those_of_py_amqp(given: dict[str, Any], exchange: str, routing_key: str) -> None:
    content = encoded(given["body"], given)

    frames = publish_frames(7, FRAME_MAX, content, exchange, routing_key)

    mandatory = bool(given.get("message_id"))
    assert frames == by_py_amqp(Message(**given), exchange, routing_key, mandatory=mandatory)


def test_further_headers_are_the_last_ones() -> None:
    more = {"delayq-digit-0": "3", "delayq-digit-1": "0"}
    content = encoded(b"a", {"application_headers": {"id": "a"}, "priority": 3})

    frames = publish_frames(7, FRAME_MAX, content, "", "orders", more)

    whole = Message(b"a", application_headers={"id": "a", **more}, priority=3)
    assert frames == by_py_amqp(whole, "", "orders", mandatory=False)


def test_a_name_of_more_than_255_bytes_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="255"):
        publish_frames(1, FRAME_MAX, encoded("a", {}), "x" * 256, "")


@pytest.mark.parametrize(
    "headers",
    [
        {"a": float("nan")},
        {"a": ({"b": [float("-inf")]},)},
        {5: "a"},
        {"a": {None: 1}},
        {"a": object},
    ],
    ids=str,
)
def test_headers_that_rabbitmq_cannot_read_are_an_error(headers: dict[Any, Any]) -> None:
    with pytest.raises(InvalidOption, match="AMQP cannot write this"):
        encoded("a", {"application_headers": headers})
