"""A result backend that is away, and records its calls."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from celery.backends.redis import RedisBackend
from redis.exceptions import ConnectionError

from tests.apps.ledgers import gates

#: The part of the backend that is away: see `tests.support.endings.cells.RESULTS`.
AWAY = os.environ.get("APP_RESULTS")


class Backend(RedisBackend):
    """Redis as result backend. All calls fail, or only those that count for chords."""

    def get(self, key: Any) -> Any:
        """Read a key."""
        return _fail() if AWAY == "away" else super().get(key)

    def set(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        """Write a key."""
        return _fail() if AWAY == "away" else super().set(key, *args, **kwargs)

    def on_chord_part_return(self, *_: Any, **__: Any) -> NoReturn:
        """Count an ended member of a chord."""
        _fail()


def _fail() -> NoReturn:
    frame: Any = sys._getframe()
    while not frame.f_globals["__name__"].startswith(("celery.worker", "celery.app.trace")):
        frame = frame.f_back
    gates.sadd("backend calls", f"{frame.f_globals['__name__']}:{frame.f_lineno}")
    raise ConnectionError("the result backend is away")
