"""Decode the body of a message once.

Celery's consumer decodes the body to inspect it. The process that runs the task decodes it again.
Benchmark row: ``fast-bodies``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace


def decode_once(_owner: type, init: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor of requests: use the body that the message has already decoded."""

    def __init__(request: Any, message: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if not kwargs.get("decoded") and kwargs.get("body") is message.body:
            kwargs.update(body=message.payload, decoded=True)
        init(request, message, *args, **kwargs)

    return __init__


GROUP = Group(
    name="bodies",
    worker=(
        Replace(
            target="celery.worker.request:Request.__init__",
            by=decode_once,
            without="The consumer decodes the body of a message, and the process that runs the task"
            " decodes it again.",
        ),
    ),
    upstream="celery: in `celery.worker.strategy.default` give the request "
    "`body=message.payload, decoded=True`, since `'args' not in message.payload` has decoded it.",
)
