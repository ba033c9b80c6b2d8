"""Settle a leased message in the thread that has ended its task.

Celery has the event loop call two promises for each message, because only the loop may write to
the socket of most brokers. An error in one callback of the loop drops all callbacks of the same
turn (``kombu.asynchronous.Hub``): messages of ended tasks would stay leased until the worker ends.
Our acknowledgements are only recorded here, so any thread may make them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vine import promise

from celery_delayq.model.broker import is_leased


def settle_at_once(_owner: type, create: Callable[..., Any]) -> Callable[..., Any]:
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
