"""Commands that change scheduled tasks and the calls in waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.apply import (
    Action,
    apply,
    future_eta,
    item_outcome,
    logging_in_one_line,
    print_bulk,
    values_as_options,
)
from celery_delayq.cli.command import command
from celery_delayq.cli.commands.show import ENTRIES
from celery_delayq.cli.items import ItemOutcome, change_each
from celery_delayq.cli.options import (
    DurationType,
    Selection,
    TimeType,
    argument,
    filter_words,
    flag,
    group_option,
    id_argument,
    if_eta_option,
    json_lines_option,
    json_option,
    option,
    queue_option,
    root_option,
    with_changes,
    with_place_filter,
    with_selection,
)
from celery_delayq.cli.rewriting import (
    RewriteOptions,
    ask_and_rewrite,
    function_of,
    with_rewrite_options,
)
from celery_delayq.cli.text import quoted
from celery_delayq.model.scheduled import Filter
from celery_delayq.utils.text import span


def _cancelling(delayq: DelayQ) -> Action:
    return Action("Cancel", "cancelled", delayq.cancel, delayq.cancel_all, ENTRIES)


@command()
@with_selection
def cancel(delayq: DelayQ, selection: Selection) -> bool:
    """Cancel tasks that no worker has taken.

    Give ids, or a filter: then the number of selected entries is shown, and you are asked. Exits
    with 1 when something was not cancelled, as when a worker has it; `celery control revoke` is
    for that.

    \b
    Examples:
      celery -A shop delayq cancel 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq cancel mail-7 --if-eta 2030-01-31T09:00:00Z
      celery -A shop delayq cancel --task shop.remind --dry-run
      celery -A shop delayq cancel --queue mail --due-to 1h --yes --json
    """
    return apply(delayq, _cancelling(delayq), selection)


@command("cancel-canvas")
@root_option
@group_option
@json_option
def cancel_canvas(delayq: DelayQ, root_id: str | None, group_id: str | None) -> None:
    """Cancel all tasks of a chain, a chord or a group.

    Its scheduled tasks are cancelled now; this reads the whole schedule. Workers refuse its tasks
    that are ready, or are sent later by its running tasks.

    \b
    Examples:
      celery -A shop delayq cancel-canvas --root order-7
      celery -A shop delayq cancel-canvas --group 5c1f… --json
    """
    if (root_id is None) == (group_id is None):
        raise click.UsageError("give either --root or --group")
    with logging_in_one_line(), screen.progress_bar(description="read") as bar:
        total = delayq.count()
        bulk = delayq.cancel_canvas(
            root_id=root_id, group_id=group_id, progress=lambda bulk: bar(total, bulk.found)
        )
    if screen.is_json():
        screen.print_json({"root": root_id, "group": group_id, **bulk.as_dict()})
        return
    print_bulk(_cancelling(delayq), bulk)
    screen.console().print("Workers refuse its tasks that are ready or are sent later.")


@command()
@option(
    "--eta", type=TimeType(), help="To this time: ISO 8601, 17:00, tomorrow 9:00, or 2h from now."
)
@option(
    "--in",
    "--countdown",
    "countdown",
    type=DurationType(expected="a time in the future; run-now runs at once"),
    help="To this long from now: 90, 1h30m.",
)
@option(
    "--by",
    type=DurationType(negative=True, expected="a time another than none; run-now runs at once"),
    help="By this much: 90 (seconds), 1h30m, 2d; -10m for earlier.",
)
@with_selection
def reschedule(
    delayq: DelayQ, selection: Selection, eta: str | None, countdown: float | None, by: float | None
) -> bool:
    """Move scheduled tasks to another time.

    Give ids, or a filter: then the number of selected entries is shown, and you are asked. Exits
    with 1 when something was not moved: it has left the schedule, or would have been due in the
    past.

    \b
    Examples:
      celery -A shop delayq reschedule mail-7 --eta 2030-01-31T09:00:00+01:00
      celery -A shop delayq reschedule mail-7 --in 1h30m
      celery -A shop delayq reschedule --task shop.remind --due-to 1h --by 15m
      celery -A shop delayq reschedule --queue mail --by -10m --yes
    """
    if sum(each is not None for each in (eta, countdown, by)) != 1:
        raise click.UsageError("give one of --eta, --in and --by")
    if eta is not None:
        how = f"to {future_eta(delayq, eta, 'run-now runs at once')}"
    elif countdown is not None:
        how = f"to {span(countdown)} from now"
    else:
        how = f"{span(by or 0)} {'earlier' if (by or 0) < 0 else 'later'}"
    one = partial(delayq.reschedule, eta=eta, countdown=countdown, by=by)
    many = partial(delayq.reschedule_all, eta=eta, countdown=countdown, by=by)
    return apply(delayq, Action("Move", "moved", one, many, ENTRIES, f" {how}"), selection)


@command("run-now")
@with_selection
def run_now(delayq: DelayQ, selection: Selection) -> bool:
    """Run scheduled tasks at once.

    They become ready and run next in their priority; paused ones run when they are resumed. Give
    ids, or a filter: then the number of selected entries is shown, and you are asked. Exits with 1
    when something had left the schedule.

    \b
    Examples:
      celery -A shop delayq run-now 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq run-now --task shop.remind --due-to 10m
    """
    action = Action("Run now", "made ready", delayq.run_now, delayq.run_all_now, ENTRIES)
    return apply(delayq, action, selection)


@command()
@id_argument
@with_changes
@queue_option
@if_eta_option
@json_option
def update(
    delayq: DelayQ, id: str, changes: dict[str, Any], queue: str | None, if_eta: str | None
) -> bool:
    """Change the arguments of a scheduled task, and more.

    Also its priority, its expiry and its headers. What is not given stays, with its due time, its
    id and what follows in its canvas. Its unique key and its limit follow the arguments. Exits
    with 1 when it was not changed: a worker may have it, or another task has the new unique key.

    \b
    Examples:
      celery -A shop delayq update mail-7 --args '["ann@example.org"]'
      celery -A shop delayq update mail-7 --kwargs '{"text": "Hi"}' --priority 3
      celery -A shop delayq update mail-7 --expires 2h --header tenant=a
      celery -A shop delayq update mail-7 --args '[8]' \\
          --if-eta 2030-01-31T09:00:00Z --json
    """
    if not changes.keys() - {"unpickle"}:
        raise click.UsageError(
            "give what is to be changed: --args, --kwargs, --priority, --expires or --header"
        )
    screen.known_tasks(delayq)  # the tasks say which arguments they take

    def change(id: str) -> ItemOutcome:
        with values_as_options():
            outcome = delayq.update(id, **changes, queue=queue, if_eta=if_eta)
        return item_outcome(ENTRIES, id, outcome, "updated")

    is_done = change_each([id], change)
    if not is_done:
        screen.note_unknown_queue(delayq, queue, stderr=True)
    return is_done


@command()
@argument("former", "OLD", "The name under which messages wait.")
@argument("name", "NEW", "The name of the task in the new code.")
@queue_option
@flag("--force", help="Allow names that this app does not know.")
@with_rewrite_options
@json_lines_option
def rename(
    delayq: DelayQ, former: str, name: str, queue: str | None, force: bool, how: RewriteOptions
) -> bool:
    """Rename a task in all that waits.

    In scheduled and held tasks, with their unique keys, in dead letters, in periodic entries that
    are not in code, and in the chains, callbacks and chords of any task. If OLD is paused, NEW is
    paused too. A dry run comes first, and you are asked. What is ready stays: workers run it if the
    app has DelayQ(app, renamed={OLD: NEW}); see docs/deploys.md. NEW must be a task of the app, or
    a former name of one in renamed=.

    If several apps share the broker, and another one has a task OLD, give a queue of this app: then
    NEW is not paused.

    Exits with 1 when something was not renamed: another process changed it meanwhile, or it cannot
    be decoded; and when OLD may be a typo: nothing is renamed, and this app does not know OLD.

    \b
    Examples:
      celery -A shop delayq rename shop.remind mail.remind
      celery -A shop delayq rename shop.remind mail.remind --dry-run --json
      celery -A shop delayq rename shop.remind mail.remind --yes --resume WyJyZW5…
    """
    how.check()
    screen.check_queue(delayq, queue)
    if not force:
        screen.check_task(delayq, name)
    words = ["rename", quoted(former), quoted(name), *filter_words(Filter(queue))]
    words += ["--force"] if force else []
    make = partial(delayq.rename, former, name, queue=queue)
    is_whole = how.resume is None  # else the first part may have renamed all
    note_nothing: Callable[[DelayQ, str], None]
    note_nothing = _refuse_typo if is_whole and not force else _note_typo
    return ask_and_rewrite(make, how, "renamed", words, partial(note_nothing, delayq, former))


@command()
@argument("function", "MODULE:FUNCTION", "A function of a call.")
@with_place_filter
@with_rewrite_options
@json_lines_option
def rewrite(delayq: DelayQ, function: str, filter: Filter, how: RewriteOptions) -> bool:
    """Rewrite what waits by a function of your own.

    The function gets each call that waits, with its task, args, kwargs and part, and returns None
    or its changes: a dict with task, args, kwargs; of a message, also priority, expires, headers.
    The calls are those of scheduled and held tasks, dead letters and periodic entries that are not
    in code, and the calls in their chains, callbacks and chords. With --task, only calls of this
    task. A dry run comes first, and you are asked. The function must return None for a call that
    needs no change: it may get a call twice.

    An error of the function is reported, with the id of the message, which stays as it is; all
    others are rewritten. With --stop it ends, and the printed command tries these calls again.
    Exits with 1 when something was not rewritten.

    \b
    Examples:
      celery -A shop delayq rewrite deploy.fixes:add_currency --dry-run
      celery -A shop delayq rewrite deploy.fixes:add_currency --task shop.pay
      celery -A shop delayq rewrite deploy.fixes:add_currency --yes --json
    """
    how.check()
    screen.check_queue(delayq, filter.queue)
    screen.check_priority(delayq, filter)
    make = partial(delayq.rewrite, function_of(function), filter)
    words = ["rewrite", quoted(function), *filter_words(filter)]
    note = partial(_note_typo, delayq, filter.task)
    return ask_and_rewrite(make, how, "rewritten", words, note)


def _refuse_typo(delayq: DelayQ, task: str) -> None:
    """Refuse a task that may be a typo (Refused): no call of it was found to change."""
    screen.check_task(delayq, task, screen.scheduled_tasks(delayq))


def _note_typo(delayq: DelayQ, task: str | None) -> None:
    """Print a note about a task that may be a typo: no call of it was found to change."""
    if task is not None:
        screen.note_unknown_task(delayq, task, screen.scheduled_tasks(delayq))
