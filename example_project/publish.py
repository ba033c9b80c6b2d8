"""Schedule the reminders, by plain ``apply_async(eta=…)``, and the hourly report.

Each sent reminder is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from example_project.app import delayq
from example_project.plan import HOUR, CompressedClock, Kind, Reminder, as_datetime
from example_project.records import Records
from example_project.settings import is_on_rabbitmq
from example_project.tasks import call_boarding, remind_check_in, traffic_report
from example_project.traffic import NAME, tick_id

TASKS: dict[Kind, Any] = {Kind.CHECK_IN: remind_check_in, Kind.BOARDING: call_boarding}


def publish(
    reminders: Iterable[Reminder], clock: CompressedClock, records: Records
) -> Iterator[Reminder]:
    """Schedule the reminders one by one; yield each after it was sent."""
    for reminder in reminders:
        send(reminder, clock, task_id=reminder.task_id)
        records.add_published(
            reminder.task_id, reminder.kind.value, clock.real_ms(reminder.planned)
        )
        yield reminder


def publish_again(reminders: Iterable[Reminder], clock: CompressedClock) -> Iterator[bool]:
    """Schedule reminders again without knowledge of the first time; yield whether each was added.

    It was not added if the returned id is the first one's.
    """
    for reminder in reminders:
        yield send(reminder, clock).id != reminder.task_id


def publish_report(clock: CompressedClock, hours: int) -> None:
    """Let the workers report on each of the `hours` when it has ended; there is no beat.

    Call this before the end of the first hour: an entry has no ticks before it is made. RabbitMQ
    has no periodic entries, so each report is a task with an ETA there.
    """
    kwargs = {"starts_ms": clock.starts_ms, "hour_ms": clock.hour_ms}
    if is_on_rabbitmq():
        for hour in range(hours):
            ends = as_datetime(clock.real_ms(clock.begins + (hour + 1) * HOUR))
            traffic_report.apply_async(kwargs=kwargs, eta=ends, task_id=tick_id(hour, clock))
        return
    delayq.periodic.add(
        NAME,
        timedelta(milliseconds=clock.hour_ms),
        traffic_report,
        kwargs=kwargs,
        # An interval counts from its start, so the first tick is an hour later.
        start=as_datetime(clock.starts_ms),
        end=as_datetime(clock.real_ms(clock.begins + hours * HOUR)),
        # One report for each hour, also for hours that passed without a worker, and while another
        # report waits or runs. "skip" and "queue_one" would leave some out.
        catch_up="all",
        catch_up_max=1000,
        overlap="allow",
    )


def ticks_fired() -> int:
    """Return how often the entry was fired, as the entry counts."""
    entry = delayq.periodic.get(NAME)
    return 0 if entry is None else entry.total_run_count


def send(reminder: Reminder, clock: CompressedClock, task_id: str | None = None) -> Any:
    """Schedule a reminder; return its result."""
    # The flight is stored with the reminder, and passed on to the webhook that it sends.
    with delayq.context(flight=reminder.flight.id):
        return TASKS[reminder.kind].apply_async(
            kwargs={
                "flight": reminder.flight.id,
                "departs": reminder.flight.scheduled.isoformat(timespec="minutes"),
            },
            eta=as_datetime(clock.real_ms(reminder.planned)),
            task_id=task_id,
        )
