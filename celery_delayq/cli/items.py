"""Kinds of items: their names in commands, and how commands show, count and change them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import methodcaller
from typing import Any, NamedTuple

import click
from rich.cells import cell_len, chop_cells
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.text import number_of
from celery_delayq.model.scheduled import Outcome
from celery_delayq.utils.portions import batches
from celery_delayq.utils.text import spelled

#: Items that are read at once, and shown in one table.
PAGE_ROWS = 500

#: Least terminal width, in columns, at which each value has its own table column.
WIDE_TERMINAL_COLUMNS = 160

#: Least terminal width, in columns, at which an id made by Celery fits in one line.
ID_TERMINAL_COLUMNS = 60

#: Width of a time in columns, and least width of the other columns beside it.
TIME_WIDTH, OTHERS_WIDTH = 29, 24

#: Why an item was not changed, by outcome.
REASONS = {
    Outcome.READY: "it waits for a worker already",
    Outcome.RUNNING: "a worker has it",
    Outcome.CHANGED: "others have changed it meanwhile",
    Outcome.PAST: "it would have been due in the past; run-now runs it at once",
    Outcome.CONFLICT: "another task has its unique key, or its new one",
    Outcome.UNREADABLE: "its message cannot be read, or belongs to another id: see fsck",
    Outcome.REFUSED: "RabbitMQ refused it: the log says why",
    Outcome.UNKNOWN: "there is none with this id, or no more",
}

#: Shows a progress bar; takes the total (None if unknown) and the number counted so far.
Bar = Callable[[int | None, int], None]


class Counts(Counter[tuple[str, str]]):
    """Number of items that a filter selects, by queue and task.

    *unknown* is the number of items whose arguments are not known, in a search by argument.
    """

    unknown = 0


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
    fields : Callable[[Any], Iterable[tuple[str, Any]]]
        Returns names and values of an item, as :func:`~celery_delayq.cli.screen.print_fields` takes
        them.
    traceback : Callable[[Any], str | None]
        Returns the traceback of an item, or None.
    """

    one: str
    many: str
    id_of: Callable[[Any], str]
    columns: Sequence[str]
    narrow: tuple[str, str]
    row: Callable[[Any, str, datetime, bool], Sequence[Text | str]]
    fields: Callable[[Any], Iterable[tuple[str, Any]]]
    traceback: Callable[[Any], str | None] = lambda _: None

    def number(self, number: int) -> str:
        """Return ``1 entry``, ``1,204 entries``."""
        return number_of(number, self.one, self.many)

    def show(self, item: Any, now: datetime) -> None:
        """Print all fields of an item, and its traceback."""
        output = screen.console()
        screen.print_fields(output, self.fields(item), now)
        if traceback := self.traceback(item):
            output.print(Text("traceback", "bold"))
            for line in traceback.splitlines():
                output.print(Text(spelled(line)), soft_wrap=True)

    def print_pages(
        self,
        delayq: DelayQ,
        items: Iterable[Any],
        size: int = PAGE_ROWS,
    ) -> int:
        """Print items as they are read, *size* items in a table or each item as JSON.

        Return the number of items.
        """
        return self.print_batches(delayq, batches(items, size))

    def print_batches(self, delayq: DelayQ, found: Iterable[Iterable[Any]]) -> int:
        """Print each batch at once, as :meth:`print_pages` does; return the number of items."""
        output = screen.console()
        shown = 0
        for batch in found:
            page = [*batch]
            if screen.is_json():
                for each in page:
                    screen.print_json(each.as_dict())
            else:
                table = self._table(page, screen.now_of(delayq), output.width)
                table.show_header = not shown
                output.print(table)
            shown += len(page)
        return shown

    def _table(self, items: Sequence[Any], now: datetime, width: int) -> Table:
        """Return one row for each item, in a table that fits *width* columns."""
        is_wide = width >= WIDE_TERMINAL_COLUMNS
        table = screen.new_table(*(self.columns if is_wide else self.narrow))
        ids = [self.id_of(each) for each in items]
        room = width // 2 if is_wide else width
        if room >= ID_TERMINAL_COLUMNS:
            id_width = min(max((TIME_WIDTH, *map(cell_len, ids))), room - OTHERS_WIDTH)
            if not is_wide:
                table.columns[0].width = id_width
            # A column of rich would drop spaces at the end of a line.
            ids = ["\n".join(chop_cells(id, id_width)) for id in ids]
        for each, id in zip(items, ids, strict=True):
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
        The reason why an item was not changed, by outcome, where it differs from other kinds.
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

    def reason(self, outcome: Outcome) -> str:
        """Return why an item was not changed."""
        return self.why.get(outcome) or REASONS[outcome]

    @property
    def key(self) -> str:
        """The JSON key of a list of items."""
        return self.many.replace(" ", "_")

    def print_none(self, delayq: DelayQ, filter: Any) -> None:
        """Print that there are no items, or that the filter selects none."""
        unmatched = f"0 {self.many}: the filter selects {self.none}."
        screen.console().print(self.nothing if filter.is_everything else unmatched)
        screen.note_unknown_queue(delayq, filter.queue)
        if filter.task is not None:
            screen.note_unknown_task(delayq, filter.task)

    def print_number(self, delayq: DelayQ, filter: Any, number: int, end: str = ".") -> None:
        """Print the number of items that a filter has selected; without any, :meth:`print_none`."""
        if number:
            screen.console().print(f"{self.number(number)}{end}")
        else:
            self.print_none(delayq, filter)

    def print_json(self, items: Iterable[Any], end: Callable[[], Mapping[str, Any]] = dict) -> int:
        """Print items as they are read, as one JSON object; return their number.

        Parameters
        ----------
        end : Callable[[], Mapping[str, Any]]
            Returns further values of the object, after the last item.
        """
        number = 0
        print(f'{{"{self.key}": [', end="")
        for number, each in enumerate(items, 1):
            print(",\n" if number > 1 else "\n", json.dumps(each.as_dict()), sep="", end="")
        more = "".join(f', "{name}": {json.dumps(value)}' for name, value in end().items())
        print(f"\n]{more}}}")
        return number

    def show_all(self, delayq: DelayQ, items: Sequence[Any], missing: str = "") -> bool:
        """Print all fields of items; return whether there are any items.

        Parameters
        ----------
        missing : str
            The error if there are no items.
        """
        if screen.is_json():
            screen.print_json({self.key: [self.values(each) for each in items]})
        if not items:
            click.echo(missing, err=True)
        elif not screen.is_json():
            now = screen.now_of(delayq)
            for number, each in enumerate(items):
                if number:
                    screen.console().print()
                self.show(each, now)
        return bool(items)


class ItemOutcome(NamedTuple):
    """The outcome for one item.

    Attributes
    ----------
    done : bool
        Whether the item was changed.
    outcome : str
        What happened, in a few words.
    id : str
        The id of the item in a form for a shell.
    values : Mapping[str, Any]
        The outcome as JSON.
    note : Text | str
        A further text for the end of the line.
    """

    done: bool
    outcome: str
    id: str
    values: Mapping[str, Any]
    note: Text | str = ""


def change_each(ids: Iterable[str], change: Callable[[str], ItemOutcome]) -> bool:
    """Change items by their ids and print each outcome; return whether all were changed."""
    output = screen.console()
    outcomes: list[ItemOutcome] = []
    try:
        for id in dict.fromkeys(ids):
            each = change(id)
            outcomes.append(each)
            if not screen.is_json():
                text = Text(each.outcome, "green" if each.done else "red")
                text.append(f"  {each.id}", "default").append(each.note)
                output.print(text, soft_wrap=True)
    finally:  # report finished changes even after an error
        if screen.is_json():
            screen.print_json({"outcomes": [each.values for each in outcomes]})
    return all(each.done for each in outcomes)
