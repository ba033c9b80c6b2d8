"""Make a rewrite of what waits: a dry run, a question, and the outcome of each message."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
from celery.utils.imports import import_from_cwd, symbol_by_name
from celery.utils.saferepr import saferepr
from rich.text import Text

from celery_delayq.admin.rewrite import RewriteOutcome, RewriteReport
from celery_delayq.cli import screen
from celery_delayq.cli.items import REASONS
from celery_delayq.cli.options import (
    check_can_ask,
    dry_run_option,
    flag,
    name_option,
    options_as_one_value,
)
from celery_delayq.cli.text import number_of, shown_id
from celery_delayq.utils.text import spelled

#: Most outcomes that a terminal shows.
MAX_SHOWN_OUTCOMES = 20

#: Characters of a value that are shown.
MAX_VALUE_CHARACTERS = 200


class RewriteOptions(NamedTuple):
    """How a rewrite is made."""

    dry_run: bool
    yes: bool
    resume: str | None
    stop: bool
    unpickle: bool

    def check(self) -> None:
        """Refuse what nobody can be asked (click.UsageError)."""
        if not self.dry_run and not self.yes:
            check_can_ask(", or --dry-run to see what would be changed")

    @property
    def words(self) -> list[str]:
        """The options that are set, without the cursor."""
        names = ("dry_run", "yes", "stop", "unpickle")
        words = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]
        return [*words, "--json"] if screen.is_json() else words


with_rewrite_options = options_as_one_value(
    "how",
    RewriteOptions,
    dry_run_option,
    flag("--yes", help="Do not ask, and make no dry run first."),
    name_option(
        "--resume", metavar="CURSOR", help="Continue from the cursor of an interrupted command."
    ),
    flag(
        "--stop",
        help="Stop after the page with the first error. The printed command reads this page again.",
    ),
    flag("--unpickle", help="Also decode pickle and other content that may run code."),
)


def function_of(path: str) -> Callable[..., Any]:
    """Import a function, also from the current folder, as ``-A`` does (click.UsageError)."""
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise click.UsageError(f"{path!r}: expected MODULE:FUNCTION, such as deploy.fixes:rename")
    try:
        found = symbol_by_name(path, imp=import_from_cwd)
    except Exception as exc:  # a module may raise anything
        problem = f"{type(exc).__name__}: {exc}"
        raise click.UsageError(f"{path!r} cannot be imported: {problem}") from exc
    if not callable(found):
        raise click.UsageError(f"{path!r} is {found!r}: expected a function")
    return found  # type: ignore[no-any-return]


def ask_and_rewrite(
    make: Callable[..., RewriteReport],
    how: RewriteOptions,
    done: str,
    words: Sequence[str],
    note_nothing: Callable[[], None],
) -> bool:
    """Make a dry run, ask, make the rewrite, and print the outcomes; return whether all is done.

    Parameters
    ----------
    done : str
        What is done to each.
    words : Sequence[str]
        The command without its options of a rewrite, for the hint to continue.
    note_nothing : Callable[[], None]
        Called if there is nothing to change, and nothing to pause: a name may be a typo.
    """
    output = screen.console()

    def run(done: str, words: Sequence[str], *, dry_run: bool) -> RewriteReport:
        report = _run(make, how, done, words, dry_run=dry_run)
        if not (report.outcomes or report.failed or report.pauses):
            note_nothing()
        return report

    if how.dry_run or not how.yes:
        # A cursor of the dry run before a question would leave out what was not changed.
        report = run(f"would be {done}", words if how.dry_run else (), dry_run=True)
        if how.dry_run:
            return report.is_complete
        if report.cursor is not None:
            output.print("It stopped at the first error: nothing was changed.")
            return False
        if report.done:
            question = f"{_number(report.done)} are to be {done}"
        elif report.pauses:
            question = f"Task {spelled(', '.join(report.pauses))} is to be paused"
        else:
            return report.is_complete
        if not click.confirm(f"{question}. Do it?"):
            output.print("Nothing was changed.")
            return False
    return run(done, words, dry_run=False).is_complete


def _run(
    make: Callable[..., RewriteReport],
    how: RewriteOptions,
    done: str,
    words: Sequence[str],
    *,
    dry_run: bool,
) -> RewriteReport:
    outcomes = _Outcomes(done)
    latest = RewriteReport(dry_run)
    try:
        with screen.progress_bar(description="look") as bar:

            def show(report: RewriteReport) -> None:
                nonlocal latest
                latest = report
                bar(report.total, report.looked)

            latest = make(
                dry_run=dry_run,
                unpickle=how.unpickle,
                resume=how.resume,
                stop_on_error=how.stop,
                on_outcome=outcomes.add,
                progress=show,
            )
        outcomes.end(latest)
    finally:  # also after an interruption
        if latest.cursor is not None and words:
            command = " ".join([*words, *how.words, f"--resume {latest.cursor}"])
            click.echo(f"To continue: {screen.whole_command(command)}", err=True)
    return latest


class _Outcomes:
    """Prints outcomes: all of them as JSON or where no terminal is, else the first ones.

    Parameters
    ----------
    done : str
        What was done, or would be.
    """

    def __init__(self, done: str) -> None:
        self._done = done
        self._output = screen.console()
        self._all = screen.is_json() or not sys.stdout.isatty()
        self._first_outcomes: list[RewriteOutcome] = []
        self._number = 0

    def add(self, outcome: RewriteOutcome) -> None:
        """Print an outcome, or note it for the end: a bar is on the terminal."""
        self._number += 1
        if self._all:
            self._print(outcome)
        elif len(self._first_outcomes) < MAX_SHOWN_OUTCOMES:
            self._first_outcomes.append(outcome)

    def end(self, report: RewriteReport) -> None:
        """Print what is left, and the sums."""
        for each in self._first_outcomes:
            self._print(each)
        if not self._all and self._number > len(self._first_outcomes):
            self._output.print(f"… and {self._number - len(self._first_outcomes):,} more")
        if screen.is_json():
            screen.print_json({"report": report.as_dict()})
        else:
            self._print_report(report)

    def _print(self, outcome: RewriteOutcome) -> None:
        if screen.is_json():
            screen.print_json(outcome.as_dict())
            return
        is_done = bool(outcome.outcome)
        text = Text(self._done if is_done else "not done", "green" if is_done else "red")
        text.append(f"  {shown_id(outcome.id)}", "default")
        if outcome.place != "scheduled":
            kind = "dead letter" if outcome.place == "dead" else "periodic entry"
            text.append(f"  {kind}", "default")
        if outcome.outcome is not None and not is_done:
            text.append(f"  {outcome.outcome}: {REASONS[outcome.outcome]}", "default")
        if outcome.problem:
            text.append(f"  {spelled(outcome.problem)}", "default")
        for call in outcome.calls if is_done else ():
            part = "" if call.before.part == "message" else f" in a {call.before.part}"
            changes = ", ".join(
                f"{name}={saferepr(value, MAX_VALUE_CHARACTERS)}"
                for name, value in call.changes.items()
            )
            text.append(f"  {spelled(call.before.task)}{part}: {spelled(changes)}", "default")
        self._output.print(text, soft_wrap=True)

    def _print_report(self, report: RewriteReport) -> None:
        looked = _number(report.looked)
        self._output.print(Text(f"{looked} looked at, {report.done:,} {self._done}.", "green"))
        for outcome, number in sorted(report.outcomes.items()):
            if not outcome:
                why = f"{outcome}: {REASONS[outcome]}"
                self._output.print(Text(f"{number:,} not {self._done}, {why}."))
        if report.failed:
            self._output.print(Text(f"{report.failed:,} failed, and stay as they are.", "red"))
        if report.undecoded:
            decoded = number_of(report.undecoded, "message was", "messages were")
            self._output.print(f"{decoded} not decoded. --unpickle decodes them.")
        if report.unknown:
            unknown = number_of(report.unknown, "message", "messages")
            self._output.print(f"{unknown} cannot be told: unreadable, or of protocol 1.")
        for name in report.pauses:
            state = "would be" if report.dry_run else "is"
            self._output.print(Text(f"Task {spelled(name)} {state} paused, as its old name is."))


def _number(number: int) -> str:
    return number_of(number, "message", "messages")
