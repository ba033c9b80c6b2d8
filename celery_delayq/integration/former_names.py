"""Former names of tasks: an app finds a task by each of them, and its worker runs its messages.

:class:`~celery_delayq.model.names.Renames` has the names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq.model.names import renames_of

#: The attribute of a registry of tasks with the names of tasks by their former names.
_BY_FORMER_NAME = "_delayq_former_names"


def share_with_registry(app: Any) -> None:
    """Have the registry of an app's tasks find tasks by their former names."""
    setattr(app._tasks, _BY_FORMER_NAME, renames_of(app).by_former_name)


def find_by_former_name(_owner: type, missing: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the look-up of an unknown task, as for the signatures inside a message."""

    def find(registry: Any, name: Any) -> Any:
        present = getattr(registry, _BY_FORMER_NAME, {}).get(name)
        task = None if present is None else registry.get(present)
        return missing(registry, name) if task is None else task

    return find


def add_strategies(_owner: type, update: Callable[..., Any]) -> Callable[..., None]:
    """Wrap the preparation of a worker for its tasks: it takes messages of their former names."""

    def update_strategies(consumer: Any) -> None:
        update(consumer)
        strategies = consumer.strategies
        for former, name in renames_of(consumer.app).by_former_name.items():
            if name in strategies:
                strategies[former] = _renaming(name, strategies[name])

    return update_strategies


def _renaming(name: str, strategy: Callable[..., Any]) -> Callable[..., Any]:
    """Return a strategy for messages of a former name. The original message keeps this name."""

    def start(message: Any, payload: Any, *args: Any, **options: Any) -> Any:
        if payload is None:
            message.headers = {**message.headers, "task": name}
        else:  # protocol 1
            payload = {**payload, "task": name}
        return strategy(message, payload, *args, **options)

    return start
