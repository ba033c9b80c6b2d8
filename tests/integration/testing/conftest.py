"""An app whose tasks note their runs, for tests that move the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Limit

HOUR = timedelta(hours=1)


class Runs(list[tuple[str, datetime]]):
    """The names of tasks that ran, each with the time of Python's clock."""

    def note(self, name: str) -> None:
        self.append((name, datetime.now(timezone.utc)))

    def after(self, start: datetime) -> list[tuple[str, float]]:
        """Return the names, each with the hours since *start*."""
        return [(name, (at - start) / HOUR) for name, at in self]


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def delayq_app(runs: Runs) -> Iterator[Celery]:
    nowhere = {"broker": "amqp://nobody@127.0.0.1:1//", "backend": "redis://127.0.0.1:1/0"}
    app = Celery("shop", set_as_current=False, **nowhere)
    DelayQ(app, limits={"limited": Limit("limited", rate="2/h")})

    @app.task(shared=False, name="remind")
    def remind(name: str) -> None:
        runs.note(f"remind {name}")
        app.tasks["follow_up"].apply_async((name,), countdown=2 * 3600)

    @app.task(shared=False, name="follow_up")
    def follow_up(name: str) -> str:
        runs.note(f"follow_up {name}")
        return name

    @app.task(shared=False, name="flaky", bind=True, max_retries=2, default_retry_delay=3600)
    def flaky(self: Any) -> None:
        runs.note(f"flaky {self.request.retries}")
        raise self.retry()

    @app.task(shared=False, name="note")
    def note(name: str, *_: Any, **__: Any) -> str:
        runs.note(name)
        return name

    @app.task(shared=False, name="limited")
    def limited(name: str) -> None:
        runs.note(f"limited {name}")

    yield app
    app.close()
