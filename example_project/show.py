"""What the demonstration says on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from example_project.flights import Flight, new_york
from example_project.ledger import Sums, Tally
from example_project.plan import LEAD, CompressedClock, Reminder
from example_project.records import Waiting

_LATE = timedelta(hours=1)


def plan(
    console: Console, day: date, days: int, flights: Sequence[Flight], reminders: Sequence[Reminder]
) -> None:
    """Say which flights there are and how many reminders follow from them."""
    clamped = sum(reminder.clamped for reminder in reminders)
    console.print(f"[bold]{title(day, days)}[/bold]")
    console.print(f"{len(flights):,} flights x {len(LEAD)} reminders = {len(reminders):,} tasks")
    if clamped:
        console.print(f"({clamped} of them moved to the start of the first day)")
    console.print(f"({_weather(flights)})")


def started(console: Console, workers: int, concurrency: int, flower: str | None) -> None:
    """Say that the processes are up, and where Flower is."""
    console.print(f"{workers} workers with {concurrency} processes each are ready")
    if flower:
        console.print(f"Flower: {flower}")


@contextmanager
def publishing(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar while reminders are published; call what is given after each."""
    columns = (
        TextColumn("Scheduling "), BarColumn(), MofNCompleteColumn(),
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
    console: Console, total: int, clock: CompressedClock
) -> Iterator[Callable[[float, int, Waiting], None]]:
    """Show a bar while the day runs; call what is given with real ms, runs and what waits."""
    columns = (
        TextColumn("{task.fields[clock]}"), BarColumn(), MofNCompleteColumn(), TextColumn("run"),
        TextColumn("[dim]{task.fields[waits]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=total, clock="", waits="")

        def update(now_ms: float, done: int, now: Waiting) -> None:
            if now_ms < clock.starts_ms:
                time = f"starts in {(clock.starts_ms - now_ms) / 1000:.0f} s"
            else:
                time = f"{new_york(clock.flight_time(now_ms)):%a %d %b %H:%M}"
            waits = f"{now.scheduled} scheduled, {now.ready} ready"
            progress.update(bar, completed=done, clock=time, waits=waits)

        yield update


def result(console: Console, sums: Sums, wrong: Sequence[str], picture: Path) -> None:
    """Show the table of the sums and where the picture is."""
    table = Table(title="What Redis says was published and run")
    table.add_column("reminder")
    for name in ("scheduled", "run", "early", "lost", "twice", "p50", "p99", "max"):
        table.add_column(name, justify="right")
    for kind, tally in sums.per_kind.items():
        table.add_row(kind, *_cells(tally))
    table.add_section()
    table.add_row("total", *_cells(sums.total), style="bold")
    table.caption = "p50, p99, max: lateness in real milliseconds, by the clock of Redis"
    console.print(table)
    console.print(f"Picture: {picture}")
    if not wrong:
        console.print("[green]Every reminder ran once, none was early.[/green]")


def title(day: date, days: int) -> str:
    """Name the days."""
    last = day + timedelta(days=days - 1)
    until = f"{last.day} {last:%B %Y}"
    when = f"{last:%A}, {until}" if days == 1 else f"{day.day} {day:%B} to {until}"
    return f"Departure reminders, New York, {when}"


def subtitle(flights: Sequence[Flight], sums: Sums, seconds_per_day: float) -> str:
    """Put the day and its sums into a line."""
    total = sums.total
    return (
        f"{len(flights):,} flights, a day in {seconds_per_day:g} s: "
        f"{total.scheduled:,} scheduled, {total.run:,} run, "
        f"{total.early} early, {total.lost} lost, {total.twice} twice"
    )


def _weather(flights: Sequence[Flight]) -> str:
    cancelled = sum(flight.cancelled for flight in flights)
    late = sum(flight.delay is not None and flight.delay > _LATE for flight in flights)
    return f"{cancelled} were cancelled and {late} left over an hour late, not known beforehand"


def _cells(tally: Tally) -> list[str]:
    bad = [f"[red]{n}[/red]" if n else "0" for n in (tally.early, tally.lost, tally.twice)]
    late = ["-" if n is None else f"{n:.1f}" for n in (tally.p50_ms, tally.p99_ms, tally.max_ms)]
    return [f"{tally.scheduled}", f"{tally.run}", *bad, *late]
