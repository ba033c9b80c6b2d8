"""Output of the demonstration on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from celery_delayq import DeadLetter, Outcome
from example_project.deliveries import WebhookSums, WebhookTally
from example_project.faults import ATTEMPTS
from example_project.flights import Flight, new_york
from example_project.ledger import Action, Part, Sums, Tally
from example_project.plan import LEAD, CompressedClock, Reminder
from example_project.records import Waiting
from example_project.traffic import Report, table_rows, total

if TYPE_CHECKING:
    from example_project.waiting import Line

_LATE = timedelta(hours=1)

# Names of a change's outcomes in the table: an outcome is the state of the reminder.
_CHANGES: dict[Action, str] = {"move": "late: move", "cancel": "cancelled"}
_OUTCOMES: dict[str, Sequence[Outcome]] = {
    "in time": (Outcome.DONE,),
    "ready": (Outcome.READY, Outcome.PAST),
    "running": (Outcome.RUNNING,),
    "had run": (Outcome.UNKNOWN,),
}


def plan(
    console: Console, day: date, days: int, flights: Sequence[Flight], reminders: Sequence[Reminder]
) -> None:
    """Print the flights and the number of their reminders."""
    clamped = sum(reminder.clamped for reminder in reminders)
    console.print(f"[bold]{title(day, days)}[/bold]")
    console.print(f"{len(flights):,} flights x {len(LEAD)} reminders = {len(reminders):,} tasks")
    if clamped:
        console.print(f"({clamped} of them moved to the start of the first day)")
    console.print(f"({_weather(flights)})")


def waiting_by_hours(console: Console, hours: Sequence[int], lines: Iterable[Line]) -> None:
    """Print waiting reminders, as `celery_delayq` counts them, and the next one."""
    table = Table(title="What waits in Redis, by the hours of the day")
    table.add_column("reminder")
    for name in (*(f"{a:02}-{b:02}" for a, b in pairwise(hours)), "total"):
        table.add_column(name, justify="right")
    table.add_column("next")
    for line in lines:
        table.add_row(line.kind, *map(str, line.parts), f"{line.total}", line.next_flight)
    console.print(table)


def rabbitmq(console: Console) -> None:
    """Print the differences with RabbitMQ as broker."""
    console.print(
        "On RabbitMQ, which keeps delays and neither lists nor changes nor repeats them:\n"
        "- A late or cancelled flight's reminder comes all the same. It asks whether it is still "
        "wanted, and sets itself aside. A moved one is sent again.\n"
        "- Without unique keys all is published once. Without periodic entries each traffic report "
        "is a task with an ETA.\n"
        "- What waits is one number, and lateness has one part: there is no history."
    )


def waits(console: Console, scheduled: int) -> None:
    """Print the number of waiting tasks in RabbitMQ, which has no other figures of them."""
    console.print(f"RabbitMQ has {scheduled:,} scheduled tasks")


def started(console: Console, workers: int, concurrency: int, flower: str | None) -> None:
    """Print that the processes run, and the URL of Flower."""
    console.print(f"{workers} workers with {concurrency} threads each are ready")
    if flower:
        console.print(f"Flower: {flower}")


def report_plan(console: Console, hours: int, clock: CompressedClock, *, periodic: bool) -> None:
    """Print how often there is a traffic report."""
    every = f"{clock.hour_ms / 1000:g} s"
    how = "fired by the workers, without beat" if periodic else "each a task with an ETA"
    console.print(f"{hours} traffic reports, one every {every}: {how}")


@contextmanager
def publishing(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar while reminders are published; call the yielded function after each."""
    columns = (
        TextColumn(what), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=total, rate="")

        def advance() -> None:
            progress.advance(bar)
            speed = progress.tasks[0].speed
            progress.update(bar, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance


@contextmanager
def running(
    console: Console, clock: CompressedClock
) -> Iterator[Callable[[float, int, int, Waiting], None]]:
    """Show a bar while the day runs.

    The yielded function takes real ms, finished runs, all runs, and the waiting tasks.
    """
    columns = (
        TextColumn("{task.fields[clock]}"), BarColumn(), MofNCompleteColumn(), TextColumn("run"),
        TextColumn("[dim]{task.fields[waits]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", clock="", waits="")

        def update(now_ms: float, done: int, total: int, now: Waiting) -> None:
            if now_ms < clock.starts_ms:
                time = f"starts in {(clock.starts_ms - now_ms) / 1000:.0f} s"
            else:
                time = f"{new_york(clock.flight_time(now_ms)):%a %d %b %H:%M}"
            waits = f"{now.scheduled} scheduled, {now.ready} ready, {now.dead} dead"
            progress.update(bar, completed=done, total=total, clock=time, waits=waits)

        yield update


def dead_letters(console: Console, found: Sequence[DeadLetter]) -> None:
    """Print the number of webhooks that are dead letters, and their last answers."""
    errors = Counter(each.exception for each in found).most_common()
    after = ", ".join(f"{number} {name}" for name, number in errors)
    console.print(f"{len(found)} webhooks are dead letters{after and f': {after}'}")


def reports(console: Console, found: Sequence[Report], begins: datetime, days: int) -> None:
    """Print the traffic reports: each hour of one day, or each of several days."""
    by_day = days > 1
    table = Table(title="The traffic reports, one fired at the end of each hour")
    table.add_column("day" if by_day else "hour")
    for name in ("reports", "flights", "cancelled", "departed", "late", "mean delay"):
        table.add_column(name, justify="right")
    for name, some in table_rows(found, begins, by_day=by_day):
        table.add_row(name, *_report(some))
    table.add_section()
    table.add_row("total", *_report(found), style="bold")
    table.caption = "flights = cancelled + departed; late: by 15 minutes or more"
    console.print(table)


def result(
    console: Console,
    sums: Sums,
    webhooks: WebhookSums,
    found: Sequence[Report],
    wrong: Sequence[str],
    picture: Path,
    most_at_once: int | None,
) -> None:
    """Print the tables of the sums, the path of the picture, and the checks that passed."""
    console.print(_changes(sums))
    table = Table(title="What Redis says was published and run")
    table.add_column("reminder")
    for name in ("planned", "moved", "cancelled", "run", "early", "lost", "twice"):
        table.add_column(name, justify="right")
    for kind, tally in sums.per_kind.items():
        table.add_row(kind, *_cells(tally))
    table.add_section()
    table.add_row("total", *_cells(sums.total), style="bold")
    console.print(table)
    console.print(_lateness(sums))
    console.print(_webhooks(webhooks))
    console.print(f"Picture: {picture}")
    if not wrong:
        console.print(f"[green]{_verdict(sums)}")
        console.print(f"[green]{_webhook_verdict(webhooks.total)}")
        if most_at_once is not None:
            console.print(f"[green]{_limit_verdict(webhooks, most_at_once)}")
        console.print(f"[green]{_report_verdict(found)}")


def title(day: date, days: int) -> str:
    """Return the name of the days."""
    last = day + timedelta(days=days - 1)
    until = f"{last.day} {last:%B %Y}"
    when = f"{last:%A}, {until}" if days == 1 else f"{day.day} {day:%B} to {until}"
    return f"Departure reminders, New York, {when}"


def subtitle(
    flights: Sequence[Flight], sums: Sums, webhooks: WebhookSums, seconds_per_day: float
) -> str:
    """Return the day and its sums in two lines."""
    total, tally = sums.total, webhooks.total
    return (
        f"{len(flights):,} flights, a day in {seconds_per_day:g} s: "
        f"{total.planned:,} planned = {total.run:,} run + {total.cancelled:,} cancelled; "
        f"{total.moved:,} moved, {total.early} early, {total.lost} lost, {total.twice} twice\n"
        f"{tally.sent:,} webhooks = {sum(tally.after):,} delivered + {tally.dead} dead letters, of "
        f"which {tally.replayed} were delivered when replayed"
    )


def _weather(flights: Sequence[Flight]) -> str:
    cancelled = sum(flight.cancelled for flight in flights)
    late = sum(flight.delay is not None and flight.delay > _LATE for flight in flights)
    return f"{cancelled} were cancelled and {late} left over an hour late, not known beforehand"


def _verdict(sums: Sums) -> str:
    total = sums.total
    late = sums.outcomes["cancel"].total() - total.cancelled
    return (
        f"{total.planned:,} planned = {total.run:,} run + {total.cancelled:,} cancelled. "
        f"Each ran once and none early, the {total.moved:,} moved ones at their new time; "
        f"{late or 'none'} for a cancelled flight{', too late to be cancelled' if late else ''}."
    )


def _changes(sums: Sums) -> Table:
    table = Table(title="What became of the reminders of late and cancelled flights")
    for name in ("flight", "reminders", *_OUTCOMES):
        table.add_column(name, justify="left" if name == "flight" else "right")
    for action, name in _CHANGES.items():
        outcomes = sums.outcomes[action]
        cells = [sum(outcomes[each.value] for each in meant) for meant in _OUTCOMES.values()]
        table.add_row(name, *map(str, (outcomes.total(), *cells)))
    table.caption = "ready, running, had run: too late to be changed"
    return table


def _webhooks(sums: WebhookSums) -> Table:
    table = Table(title="What the receiver got: webhooks by the attempt that was accepted")
    numbers = ["at once", "2nd", "3rd", *(f"{number}th" for number in range(4, ATTEMPTS + 1))]
    table.add_column("reminder")
    for name in ("sent", *numbers, "dead", "replayed", "refused"):
        table.add_column(name, justify="right")
    for kind, tally in sums.per_kind.items():
        table.add_row(kind, *_webhook_cells(tally))
    table.add_section()
    table.add_row("total", *_webhook_cells(sums.total), style="bold")
    table.caption = (
        f"{sums.requests:,} requests, {sums.repeated} of them again since the answer was lost\n"
        "dead = replayed, and delivered then + refused for good (404, 410)"
    )
    return table


def _report(some: Sequence[Report]) -> list[str]:
    sums = total(some)
    mean = sums.mean_delay_min
    numbers = (len(some), sums.flights, sums.cancelled, sums.departed, sums.late)
    return [*(f"{n}" for n in numbers), "-" if mean is None else f"{mean:.1f} min"]


def _report_verdict(found: Sequence[Report]) -> str:
    sums = total(found)
    return (
        f"{len(found)} hours, each with one traffic report: together {sums.flights:,} flights, "
        f"{sums.cancelled or 'none'} of them cancelled and {sums.late or 'none'} late, "
        "as in the data."
    )


def _webhook_cells(tally: WebhookTally) -> list[str]:
    numbers = (tally.sent, *tally.after, tally.dead, tally.replayed, tally.refused)
    return [f"{n}" for n in numbers]


def _webhook_verdict(tally: WebhookTally) -> str:
    return (
        f"{tally.sent:,} reminders that ran = {sum(tally.after):,} webhooks delivered + "
        f"{tally.dead} dead letters. Of these {tally.replayed} were delivered when they were "
        "replayed, and "
        f"{tally.refused or 'none'} {'was' if tally.refused == 1 else 'were'} refused for good."
    )


def _limit_verdict(webhooks: WebhookSums, most_at_once: int) -> str:
    return (
        f"The receiver is protected by a limit of {most_at_once} webhooks at once over all "
        f"workers: it had {webhooks.at_once} at most."
    )


def _cells(tally: Tally) -> list[str]:
    good = [f"{n}" for n in (tally.planned, tally.moved, tally.cancelled, tally.run)]
    bad = [f"[red]{n}[/red]" if n else "0" for n in (tally.early, tally.lost, tally.twice)]
    return [*good, *bad]


def _lateness(sums: Sums) -> Table:
    table = Table(title="How late the reminders started, by Redis' clock")
    table.add_column("from when to when")
    for name in ("tasks", "p50", "p99", "max"):
        table.add_column(name, justify="right")
    for part, spread in sums.lateness.items():
        if not spread.number:
            continue  # RabbitMQ does not have the time when a task became ready
        figures = ("-" if ms is None else f"{ms:.1f} ms" for ms in spread[1:])
        table.add_row(part.value, f"{spread.number}", *figures, end_section=part is Part.WAIT)
    return table
