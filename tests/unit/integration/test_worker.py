"""Changes to the worker that need no worker to be seen."""

from __future__ import annotations

from kombu.asynchronous.hub import Hub

from celery_delayq.integration import install


def test_an_event_loop_with_something_to_do_waits_for_nothing() -> None:
    hub = Hub()
    install.change_loop(hub)
    hub.call_later(60, print)

    idle = hub.fire_timers()
    hub.call_soon(print)  # as what it runs asks for an acknowledgement
    busy = hub.fire_timers()

    assert (idle > 0, busy) == (True, 0)
