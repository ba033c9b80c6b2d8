"""Kinds of items: their names in commands, and how commands show, count and change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import methodcaller
from typing import Any, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.text import number_of
from celery_delayq.model.scheduled import Outcome

#: Number of items that a filter selects, by queue and task.
Counts = Counter[tuple[str, str]]

#: Shows a progress bar; takes the total (None if unknown) and the number counted so far.
Bar = Callable[[int | None, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemKind:
    """Scheduled entries, dead letters or periodic entries.

    Attributes
    ----------
    one, many : str
        The noun in the singular, and in the plural.
    id_of : Callable[[Any], str]
        Returns the id of an item in a form for a shell.
    columns, narrow : Sequence[str]
        Column titles of a table on a wide terminal, and on other terminals.
    row : Callable[[Any, str, datetime, bool], Sequence[Text | str]]
        Returns the cells of an item. Takes the item, its id (split into lines), the current time,
        and whether the terminal is wide.
    show : Callable[[Any, datetime], None]
        Prints all fields of an item. Takes the item and the current time.
    """

    one: str
    many: str
    id_of: Callable[[Any], str]
    columns: Sequence[str]
    narrow: tuple[str, str]
    row: Callable[[Any, str, datetime, bool], Sequence[Text | str]]
    show: Callable[[Any, datetime], None]

    def number(self, number: int) -> str:
        """Return ``1 entry``, ``1,204 entries``."""
        return number_of(number, self.one, self.many)

    def table(self, items: Sequence[Any], now: datetime, width: int) -> Table:
        """Return one row for each item, in a table that fits *width* columns."""
        ids = [self.id_of(each) for each in items]
        table, is_wide, ids_in_lines = screen.table_of_ids(ids, width, self.columns, self.narrow)
        for each, id in zip(items, ids_in_lines, strict=True):
            table.add_row(*self.row(each, id, now, is_wide))
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedKind(ItemKind):
    """A kind of items that a filter can select.

    Attributes
    ----------
    nothing : str
        The sentence if there are no items at all.
    none : str
        The object of the sentence "the filter selects …" if the selection is empty.
    why : Mapping[Outcome, str]
        The reason why an item was not changed, by outcome.
    count : Callable[[DelayQ, Any, Bar], Counts]
        Counts the items that a filter selects.
    values : Callable[[Any], Any]
        Returns all values of an item as JSON types.
    """

    nothing: str
    none: str
    why: Mapping[Outcome, str]
    count: Callable[[DelayQ, Any, Bar], Counts]
    values: Callable[[Any], Any] = methodcaller("as_dict")

    @property
    def key(self) -> str:
        """The JSON key of a list of items."""
        return self.many.replace(" ", "_")

    def print_none(self, delayq: DelayQ, filter: Any, *, stderr: bool = False) -> None:
        """Print that there are no items, or that the filter selects none."""
        unmatched = f"0 {self.many}: the filter selects {self.none}."
        text = self.nothing if filter.is_everything else unmatched
        screen.console(stderr=stderr).print(text)
        screen.note_unknown_queue(delayq, filter.queue, stderr=stderr)

    def show_all(
        self, delayq: DelayQ, items: Sequence[Any], missing: str, *, as_json: bool
    ) -> bool:
        """Print all fields of items; return whether there are any items.

        Parameters
        ----------
        missing : str
            The error if there are no items.
        """
        if as_json:
            screen.print_json({self.key: [self.values(each) for each in items]})
        if not items:
            click.echo(missing, err=True)
        elif not as_json:
            now = screen.now_of(delayq)
            for number, each in enumerate(items):
                if number:
                    screen.console().print()
                self.show(each, now)
        return bool(items)


class ItemOutcome(NamedTuple):
    """The outcome for one item: whether it was changed, as text, and as JSON."""

    done: bool
    text: Text
    values: Mapping[str, Any]


def change_each(ids: Iterable[str], change: Callable[[str], ItemOutcome], *, as_json: bool) -> bool:
    """Change items by their ids and print each outcome; return whether all were changed."""
    output = screen.console()
    outcomes: list[ItemOutcome] = []
    try:
        for id in dict.fromkeys(ids):
            outcome = change(id)
            outcomes.append(outcome)
            if not as_json:
                output.print(outcome.text, soft_wrap=True)
    finally:  # report finished changes even after an error
        if as_json:
            screen.print_json({"outcomes": [each.values for each in outcomes]})
    return all(each.done for each in outcomes)
