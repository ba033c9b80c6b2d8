"""A dispatcher that ignores duty, as earlier versions do.

It waits for the next due, even if another one does, and never announces itself: ``python -m
tests.support.faults.eager``.
"""

from __future__ import annotations

import os

from redis import Redis

from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.dispatch.pacing import PollTimer
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.replies import Look, Promoted
from celery_delayq.store.store import Store


class EagerTimer(PollTimer):
    """A timer that plans as the only dispatcher."""

    def note_look(self, look: Look, promoted: Promoted | None = None) -> None:
        """Plan as if there were no other dispatcher."""
        super().note_look(look._replace(on_duty=True, fleet=1), promoted)


def main() -> None:
    """Dispatch until the process is killed."""
    url = os.environ["CELERY_BROKER_URL"].removeprefix("delayq+")
    settings = Settings()
    dispatcher = Dispatcher(Store(Redis.from_url(url), Keys(), Layout()), settings)
    dispatcher._timer = EagerTimer(settings.dispatch_interval)
    dispatcher._id = ""  # a dispatcher without an id takes no duty
    print("dispatching", flush=True)
    dispatcher.run()


if __name__ == "__main__":
    main()
