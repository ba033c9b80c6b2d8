"""After the day: list and replay the dead letters of the webhooks."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console

from celery_delayq import DeadFilter, DeadLetter
from celery_delayq.webhook import post
from example_project import show
from example_project.app import delayq
from example_project.day import POLL_INTERVAL_S, is_settled
from example_project.deliveries import Dead
from example_project.records import Records
from example_project.services import Services
from example_project.waiting import waiting

#: A replayed webhook is tried as often as a new one, if needed.
REPLAY_TIMEOUT_S = 20.0


def replay(console: Console, services: Services, records: Records) -> tuple[list[Dead], list[Dead]]:
    """Repair the receiver and replay all dead letters; return the dead ones before and after."""
    before = [*delayq.dead_letters(task=post.name)]
    show.dead_letters(console, before)
    records.repair_receiver()
    delayq.replay_all(DeadFilter(task=post.name))
    deadline = time.monotonic() + REPLAY_TIMEOUT_S
    with console.status("The receiver is repaired, the dead letters are replayed"):
        while not is_settled(records, waiting()) and time.monotonic() < deadline:
            services.check()
            time.sleep(POLL_INTERVAL_S)
    return _dead(before), _dead(delayq.dead_letters(task=post.name))


def _dead(letters: Iterable[DeadLetter]) -> list[Dead]:
    return [
        Dead(letter.task_id or letter.id, attempts=(letter.retries or 0) + 1) for letter in letters
    ]
