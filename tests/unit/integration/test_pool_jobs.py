"""What a prefork pool makes for each task, without a worker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

from celery_delayq.integration.pool import jobs


def test_an_event_is_set_for_good() -> None:
    event = jobs.Event()
    before = event.is_set(), event.wait(0)

    event.set()

    assert (before, event.is_set(), event.wait(0), event.wait()) == (
        (False, False),
        True,
        True,
        True,
    )


def test_all_who_wait_for_an_event_are_woken() -> None:
    event = jobs.Event()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(event.wait, 60) for _ in range(4)]
        event.set()

        assert [each.result(60) for each in waiting] == [True] * 4


@pytest.mark.parametrize("_", range(200))
def test_who_begins_to_wait_while_an_event_is_set_is_woken(_: int) -> None:
    event = jobs.Event()
    ready = threading.Barrier(2)

    def wait() -> bool:
        ready.wait()
        return event.wait(60)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        ready.wait()
        event.set()

        assert waiting.result(60)


def test_a_module_with_light_events_is_otherwise_threading() -> None:
    module = jobs.with_light_events(ModuleType("owner"), threading)

    different = {
        name for name in vars(threading) if vars(module)[name] is not vars(threading)[name]
    }
    assert (different, module.Event) == ({"Event"}, jobs.Event)
