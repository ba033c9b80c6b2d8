"""Settles leased messages without a turn of the event loop.

Celery creates two ``vine.promise`` objects for each message. The event loop calls them, because
only the loop may write to the socket of a broker. Our acknowledgements are only recorded here.
Benchmark row: ``fast-acks``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vine import promise

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace
from celery_delayq.model.broker import is_leased


def settling_at_once(_owner: type, create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``create_task_handler``: the thread that ends a task settles its message, if leased."""

    def create_task_handler(consumer: Any, promise: Callable[..., Any] = promise) -> Any:
        def settling(call_soon: Any, args: tuple[Any], **options: Any) -> Any:
            (method,) = args
            message = getattr(method, "__self__", None)  # None where other code has wrapped it
            if (
                message is not None
                # After a lost connection, promises raise the prefetch count up to its old value.
                and consumer._maximum_prefetch_restored
                and is_leased(message.channel, message.delivery_tag)
            ):
                return partial(message.channel.hand_out.settle_soon, method)
            return promise(call_soon, args, **options)

        return create(consumer, promise=settling)

    return create_task_handler


GROUP = Group(
    name="acks",
    worker=(
        Replace(
            target="celery.worker.consumer:Consumer.create_task_handler",
            by=settling_at_once,
            why="each acknowledgement waits for a turn of the event loop, in two promises",
        ),
    ),
    upstream="celery: where `message.channel.settles_in_any_thread` is true, hand "
    "`message.ack_log_error` and `message.reject_log_error` to the strategy as they are.",
)
