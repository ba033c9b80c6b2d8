"""Create task ids without a UUID object.

Celery computes ``str(uuid4())`` for each task, which takes three times as long. Benchmark row:
``fast-ids``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace
from celery_delayq.utils.ids import new_id


def making_ids(_owner: Any, _stock: Callable[..., str]) -> Callable[..., str]:
    """Return a function that creates ids like Celery's, without a UUID object."""

    def uuid(*_: Any) -> str:
        return new_id()

    return uuid


GROUP = Group(
    name="ids",
    process=(
        Replace(
            target="celery.app.base:uuid",
            by=making_ids,
            why="Celery makes an object of each id",
        ),
    ),
    upstream="kombu: have `kombu.utils.uuid.uuid` format `os.urandom(16).hex()` with the bits of "
    "version and variant set, instead of `str(uuid4())`.",
)
