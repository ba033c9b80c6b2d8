"""Refuses to wait without end for results of tasks that run only in ``travel`` and ``drain``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final

from celery import Celery, _state
from celery.result import AsyncResult, ResultSet

from celery_delayq.errors import TravelError

#: Methods that wait; the first argument of each is the timeout.
_WAITS: Final = (
    (AsyncResult, "get"),
    (AsyncResult, "wait"),
    (ResultSet, "join"),
    (ResultSet, "join_native"),
    (ResultSet, "iter_native"),
)


@contextmanager
def refused_waits(app: Celery, threads: Callable[[], Container[int]]) -> Iterator[None]:
    """Have a wait without a timeout raise TravelError where nothing would end it.

    Parameters
    ----------
    app : Celery
        The app whose results are concerned.
    threads : Callable[[], Container[int]]
        Returns the threads that run the tasks: while one of them waits, no task runs.
    """

    def refusing(stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def wait(result: Any, timeout: float | None = None, *args: Any, **kwargs: Any) -> Any:
            if (
                timeout is None
                and result.app is app
                and threading.get_ident() in threads()
                and not _ends_at_once(result, stock, kwargs)
            ):
                raise TravelError(
                    f"{result!r} waits without end, since tasks run only in travel() and drain(): "
                    "call one of them first, or wait with a timeout"
                )
            return stock(result, timeout, *args, **kwargs)

        return wait

    with ExitStack() as block:
        for owner, name in _WAITS:
            stock = vars(owner)[name]
            block.callback(setattr, owner, name, stock)
            setattr(owner, name, refusing(stock))
        yield


def _ends_at_once(result: Any, stock: Callable[..., Any], options: dict[str, Any]) -> bool:
    """Return whether a wait returns or raises at once."""
    is_refused_in_tasks = stock.__name__ != "iter_native" and options.get(
        "disable_sync_subtasks", True
    )
    if is_refused_in_tasks and _state.task_join_will_block():
        return True
    return bool(getattr(result, "ignored", False) or result.ready())
