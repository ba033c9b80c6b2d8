"""Scheduling the reminders: plain ``apply_async(eta=…)``, each written down once it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from example_project.app import delayq
from example_project.plan import CompressedClock, Kind, Reminder, as_datetime
from example_project.records import Records, Waiting
from example_project.tasks import call_boarding, remind_check_in

TASKS: dict[Kind, Any] = {Kind.CHECK_IN: remind_check_in, Kind.BOARDING: call_boarding}


def publish(
    reminders: Iterable[Reminder], clock: CompressedClock, records: Records
) -> Iterator[Reminder]:
    """Schedule the reminders one by one and give each after it was sent."""
    for reminder in reminders:
        eta_ms = clock.real_ms(reminder.planned)
        TASKS[reminder.kind].apply_async(
            kwargs={
                "flight": reminder.flight.id,
                "departs": reminder.flight.scheduled.isoformat(timespec="minutes"),
            },
            eta=as_datetime(eta_ms),
            task_id=reminder.task_id,
        )
        records.add_published(reminder.task_id, reminder.kind.value, eta_ms)
        yield reminder


def waiting() -> Waiting:
    """Ask the broker what waits."""
    stats = delayq.stats()
    return Waiting(scheduled=stats.scheduled, ready=stats.ready)
