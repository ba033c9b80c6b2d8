"""Replaying and purging dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import click

from celery_delayq.app import DelayQ
from celery_delayq.cli.control import Change
from celery_delayq.cli.dead_options import How
from celery_delayq.cli.screen import Things, console_of, known_tasks, note_unknown_queue
from celery_delayq.cli.words import span, spelled, stamp
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Outcome, moment

_WHY = {
    Outcome.UNKNOWN: "there is no such dead letter, or no more",
    Outcome.CHANGED: "another dead letter has its id by now",
    Outcome.CONFLICT: "another task has its unique key",
    Outcome.UNREADABLE: "it is no message of a task, its arguments are no JSON, or it never had a "
    "queue (--to-queue)",
}


def _count(delayq: DelayQ, filter: DeadFilter) -> Counter[tuple[str, str]]:
    return Counter((each.queue, each.task or "?") for each in delayq.dead_letters(filter))


DEAD_LETTERS = Things("dead_letter", "dead_letters", "no dead letter", _WHY, _count)


def dead_letter_of(delayq: DelayQ, id: str, queue: str | None) -> DeadLetter | None:
    """Return a dead letter by its id as it is shown: with ``%00`` for a NUL."""
    found = delayq.dead_letter(id, queue=queue)
    if found is None and "%00" in id:
        found = delayq.dead_letter(id.replace("%00", "\0"), queue=queue)
    return found


def _one(delayq: DelayQ, change: Callable[[DeadLetter], Outcome]) -> Callable[..., Outcome]:
    """Return what changes a dead letter by its id, in one queue or all."""

    def one(id: str, *, queue: str | None, **_: Any) -> Outcome:
        dead_letter = dead_letter_of(delayq, id, queue)
        return Outcome.UNKNOWN if dead_letter is None else change(dead_letter)

    return one


def purge(delayq: DelayQ) -> Change:
    """Return how to purge."""
    return Change("Purge", "purged", _one(delayq, delayq.purge), delayq.purge_all, "", DEAD_LETTERS)


def replay(ctx: click.Context, delayq: DelayQ, how: How) -> Change:
    """Return how to replay (click.UsageError if its ETA has passed)."""
    parts = []
    if how.args is not None or how.kwargs is not None:
        parts.append("with other arguments")
    if how.to_queue is not None:
        parts.append(f"to queue {spelled(how.to_queue)}")
        note_unknown_queue(delayq, how.to_queue, console_of(ctx, stderr=True))
    if how.eta is not None:
        when = due_of_eta(how.eta).ms
        if when <= delayq.store.now_ms():
            raise click.UsageError(
                f"--eta {stamp(moment(when))} has passed by Redis' clock; leave it out to run at "
                "once"
            )
        parts.append(f"to run at {stamp(moment(when))}")
    elif how.countdown is not None:
        parts.append(f"to run {span(how.countdown)} from now")
    elif how.rate is not None:
        parts.append(f"at {how.rate:g} a second")
    changes: Mapping[str, Any] = {"args": how.args, "kwargs": how.kwargs, "queue": how.to_queue}
    warned: set[str] = set()

    def note(tasks: Iterable[str]) -> None:
        _note_unknown_tasks(delayq, {*tasks} - warned)
        warned.update(tasks)

    def one(dead_letter: DeadLetter) -> Outcome:
        if dead_letter.task is not None:
            note([dead_letter.task])
        return delayq.replay(dead_letter, eta=how.eta, countdown=how.countdown, **changes)

    return Change(
        "Replay",
        "replayed",
        _one(delayq, one),
        partial(delayq.replay_all, rate=how.rate, **changes),
        "".join(f" {part}" for part in parts),
        DEAD_LETTERS,
        note,
    )


def _note_unknown_tasks(delayq: DelayQ, tasks: Iterable[str]) -> None:
    """Warn of tasks that would only be dead letters again."""
    known = known_tasks(delayq)
    unknown = sorted({*tasks} - known - {"?"}) if known is not None else []
    for name in unknown:
        click.echo(
            f"This app does not know the task {spelled(name)}: with a worker that does not either, "
            "it is a dead letter again.",
            err=True,
        )
