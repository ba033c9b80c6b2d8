"""An app whose broker and result backend are in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

#: The queue of the app.
QUEUE = "checked"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("checked", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue, app.strict_typing = QUEUE, False
    yield app
    app.close()
