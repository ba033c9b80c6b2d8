"""What a prefork pool makes for each task, without a worker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import pytest

from celery_delayq.integration.fast import events
from tests.support import TIMEOUT


def test_an_event_is_set_for_good() -> None:
    event = events.Event()
    before = event.is_set(), event.wait(0)

    event.set()

    assert (before, event.is_set(), event.wait(0), event.wait()) == (
        (False, False),
        True,
        True,
        True,
    )


def test_all_who_wait_for_an_event_are_woken() -> None:
    event = events.Event()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(event.wait, 60) for _ in range(4)]
        event.set()

        assert [each.result(TIMEOUT) for each in waiting] == [True] * 4


def test_who_begins_to_wait_while_an_event_is_set_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set after the last look at whether it is, and before anybody is known to wait."""
    event = events.Event()

    class SetMeanwhile(threading.Event):
        def __init__(self) -> None:
            super().__init__()
            event.set()

    monkeypatch.setattr(events, "threading", SimpleNamespace(Event=SetMeanwhile))

    assert event.wait(TIMEOUT)


def test_a_module_with_light_events_is_otherwise_threading() -> None:
    module = events.with_light_events(ModuleType("owner"), threading)

    names = {name for name in vars(threading) if not name.startswith("__")}
    different = {name for name in names if getattr(module, name) is not getattr(threading, name)}
    assert (different, module.Event) == ({"Event"}, events.Event)
