"""What a dispatcher does first, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_delayq.dispatch import ready_looks
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.settings import Settings
from celery_delayq.store.scripting.replies import Look


@pytest.mark.parametrize(("seconds_left", "portions"), [(0.0, 1), (1.0, 5)])
def test_entries_that_are_due_go_before_most_portions_of_the_ready_lists(
    monkeypatch: pytest.MonkeyPatch, seconds_left: float, portions: int
) -> None:
    none: Any = SimpleNamespace(subscribed=False)
    dispatcher = Dispatcher(none, Settings())
    looked: list[Any] = []
    store: Any = SimpleNamespace(
        registry=lambda: {f"q{n}": b"" for n in range(500)},
        ready_of=looked.append,
        wake_ready=lambda _: None,
    )
    dispatcher._store = store
    monkeypatch.setattr(ready_looks, "PORTION_SECONDS", 60.0)
    monkeypatch.setattr(ready_looks, "FLEET_LOOK_SECONDS", 60.0)
    monkeypatch.setattr(type(dispatcher._timer), "wait", lambda _: seconds_left)
    dispatcher.ready_looks.note_look(Look(0, None, None, ready="own turn", queues=500))

    for _ in range(5):
        dispatcher._look_at_portion(none)

    assert len(looked) == portions
