"""``history`` and ``timeline``: finished runs, and all that is known of one task by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from celery_delayq.admin.why.timeline import events_of, other_reasons
from celery_delayq.app import DelayQ
from celery_delayq.cli import options, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.items import ItemKind
from celery_delayq.cli.text import number_of, shown_id, stamp
from celery_delayq.model.history import Run
from celery_delayq.utils.text import span, spelled

#: Number of runs that are shown by default, and most attempts of one task in a timeline.
DEFAULT_LIMIT, MAX_ATTEMPTS = 100, 1000


@command()
@options.number_option(
    "--limit",
    type=click.IntRange(1, 10_000),
    help=f"Most runs to show; {DEFAULT_LIMIT} by default.",
)
@options.name_option("--after", metavar="OFFSET", help="Show the runs after this offset.")
@options.json_option
def history(delayq: DelayQ, limit: int | None, after: str | None) -> None:
    """Show finished runs, in the order of their ends.

    These are the last ones or, with --after, the next ones. Runs are kept if the setting `history`
    is more than 0. In JSON each run has its offset.

    \b
    Examples:
      celery -A shop delayq history
      celery -A shop delayq history --limit 1000 --json | jq -r '.runs[].state'
      celery -A shop delayq history --after 1700000000000-0
    """
    count = limit or DEFAULT_LIMIT
    runs = delayq.runs.newest(count) if after is None else [*delayq.history(after, count)]
    if screen.is_json():
        screen.print_json({"runs": [each.as_dict() for each in runs]})
        return
    RUNS.print_pages(delayq, runs)
    if runs:
        screen.console().print(
            f"{RUNS.number(len(runs))}; the last one has offset {runs[-1].offset}."
        )
    else:
        screen.console().print("No finished runs.")


@command()
@options.id_argument
@options.json_option
def timeline(delayq: DelayQ, id: str) -> bool:
    """Show by time what happened to a task.

    The end says what the task waits for. Its attempts come from the history, if the setting
    `history` is more than 0. All runs of the history are searched. Exits with 1 when nothing is
    known of the id.

    \b
    Examples:
      celery -A shop delayq timeline 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq timeline mail-7 --json | jq -r '.events[].at'
    """
    runs = delayq.runs.newest(MAX_ATTEMPTS, id=id)
    answer = delayq.why(id, ask_workers=False)
    events = events_of(runs, answer)
    if screen.is_json():
        told = [{"at": at.isoformat(), "event": event} for at, event in events]
        screen.print_json({"events": told, "why": answer.as_dict()})
        return answer.is_known or bool(runs)
    output = screen.console()
    for at, event in events:
        output.print(Text(stamp(at), "bold").append(f"  {event}", "default"), soft_wrap=True)
    for reason in other_reasons(runs, answer):
        output.print(Text(reason.sentence(stamp)))
    return answer.is_known or bool(runs)


def _row(run: Run, id: str, _: datetime, is_wide: bool) -> Sequence[Text | str]:
    state = Text(spelled(run.state), "green" if run.state == "SUCCESS" else "red")
    took = "" if run.started is None else span((run.ended - run.started).total_seconds())
    task, queue = Text(spelled(run.task)), Text(spelled(run.queue))
    if is_wide:
        worker = Text(spelled(run.worker))
        return stamp(run.ended), state, took, str(run.retries), task, queue, worker, Text(id)
    task.append("\n").append(state).append(f", {took}, " if took else ", ").append(queue)
    if run.retries:
        task.append(f", {number_of(run.retries, 'retry', 'retries')}")
    return Text(f"{stamp(run.ended)}\n{id}"), task


def _fields(run: Run) -> Iterator[tuple[str, Any]]:
    yield from run.as_dict().items()


RUNS = ItemKind(
    one="run",
    many="runs",
    id_of=lambda run: shown_id(run.id),
    columns=("ended", "state", "took", "retries", "task", "queue", "worker", "id"),
    narrow=("ended, id", "task"),
    row=_row,
    fields=_fields,
)
