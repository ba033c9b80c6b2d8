"""A leased message is settled where its task has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.consumer import Consumer
from kombu import Message

from celery_delayq.integration.endings import settling


class Channel:
    """A channel of ours that leases the message with tag 1."""

    def __init__(self) -> None:
        self.settled: list[Any] = []

    def leased(self, tag: int) -> bool:
        return tag == 1

    @property
    def hand_out(self) -> Channel:
        return self

    def settle_soon(self, method: Any, *args: Any) -> None:
        self.settled.append((method, *args))


@pytest.mark.parametrize(
    ("channel", "tag", "restored", "at_once"),
    [
        pytest.param(Channel(), 1, True, True, id="leased"),
        pytest.param(Channel(), 2, True, False, id="not leased"),
        pytest.param(Channel(), 1, False, False, id="prefetch to be restored"),
        pytest.param(object(), 1, True, False, id="another transport"),
    ],
)
def test_leased_messages_are_settled_without_the_event_loop(
    channel: Any, tag: int, restored: bool, at_once: bool
) -> None:
    message = Message(channel=channel, delivery_tag=tag)
    soon: list[Any] = []
    create = settling.settle_at_once(Consumer, lambda _consumer, promise: promise)
    settle = create(SimpleNamespace(_maximum_prefetch_restored=restored))

    settle(lambda *args: soon.append(args), (message.ack_log_error,), on_error=None)("logger")

    assert getattr(channel, "settled", []) == [(message.ack_log_error, "logger")] * at_once
    assert len(soon) == (not at_once)


def test_a_method_that_other_code_has_wrapped_waits_for_the_event_loop() -> None:
    message = Message(channel=Channel(), delivery_tag=1)
    soon: list[Any] = []
    create = settling.settle_at_once(Consumer, lambda _consumer, promise: promise)
    settle = create(SimpleNamespace(_maximum_prefetch_restored=True))

    def wrapped(*args: Any) -> None:
        message.ack_log_error(*args)

    settle(lambda *args: soon.append(args), (wrapped,))("logger")

    assert soon == [(wrapped, "logger")]
