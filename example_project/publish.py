"""Scheduling the reminders: plain ``apply_async(eta=…)``, each written down once it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from example_project.app import delayq
from example_project.plan import CompressedClock, Kind, Reminder, as_datetime
from example_project.records import Records
from example_project.tasks import call_boarding, remind_check_in

TASKS: dict[Kind, Any] = {Kind.CHECK_IN: remind_check_in, Kind.BOARDING: call_boarding}


def publish(
    reminders: Iterable[Reminder], clock: CompressedClock, records: Records
) -> Iterator[Reminder]:
    """Schedule the reminders one by one and give each after it was sent."""
    for reminder in reminders:
        _send(reminder, clock, task_id=reminder.task_id)
        records.add_published(
            reminder.task_id, reminder.kind.value, clock.real_ms(reminder.planned)
        )
        yield reminder


def publish_again(reminders: Iterable[Reminder], clock: CompressedClock) -> Iterator[bool]:
    """Schedule them as someone who knows nothing of the first time; say of each if it was added.

    It is not where the id that comes back is that of the first one.
    """
    for reminder in reminders:
        yield _send(reminder, clock).id != reminder.task_id


def _send(reminder: Reminder, clock: CompressedClock, task_id: str | None = None) -> Any:
    # It waits with the reminder, and goes on to the webhook that the reminder sends.
    with delayq.context(flight=reminder.flight.id):
        return TASKS[reminder.kind].apply_async(
            kwargs={
                "flight": reminder.flight.id,
                "departs": reminder.flight.scheduled.isoformat(timespec="minutes"),
            },
            eta=as_datetime(clock.real_ms(reminder.planned)),
            task_id=task_id,
        )
