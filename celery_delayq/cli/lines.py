"""Lines of text that fit a width: tables whose columns give way, and folded sentences. No I/O."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, chop_cells
from rich.text import Text

from celery_delayq.utils.text import shortened

T = TypeVar("T")

#: Most characters of a text in a cell, and of a text in lines of its own.
MAX_CELL, MAX_TEXT = 160, 4000

#: Spaces between two columns, and between two parts of a line.
_GAP = "  "


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    Attributes
    ----------
    title : str
        The title; ``""`` for a column without one.
    cell : Callable[[T], str | Text]
        Returns the content of a row, which may have any characters.
    rank : int
        Columns of a higher rank are left out first on a narrow terminal; one of rank 0 never is.
    least : int | None
        Columns to which the content may be cut; None if it may not be cut.
    is_number : bool
        Whether the content is at the right side.
    """

    title: str
    cell: Callable[[T], str | Text]
    rank: int = 0
    least: int | None = None
    is_number: bool = False


@dataclass(frozen=True)
class Paper:
    """Where lines are written.

    Attributes
    ----------
    width : int
        Columns of a line.
    ascii_only : bool
        Whether nothing but ASCII may be written, apart from names.
    """

    width: int
    ascii_only: bool = False

    @property
    def mark(self) -> str:
        """What stands for the rest of a text that is cut."""
        return "~" if self.ascii_only else "…"

    def cut(self, text: str | Text, width: int | None = None) -> Text:
        """Return a text in one line of at most *width* columns, spelled."""
        most = self.width if width is None else width
        found = text if isinstance(text, Text) else Text(shortened(text, MAX_CELL, self.mark))
        if cell_len(found.plain) <= most:
            return found
        kept = chop_cells(found.plain, max(1, most - 1))[0] if most > 1 else ""
        shown = found[: len(kept)] if kept else Text()
        return shown.append(self.mark if most > 0 else "")

    def folded(self, text: str, most: int = MAX_TEXT) -> Iterator[Text]:
        """Yield the lines of a text, folded between words where that is possible, spelled."""
        room = max(1, self.width)
        found = textwrap.wrap(
            shortened(text, most, self.mark), room, break_long_words=False, break_on_hyphens=False
        )
        for line in found or [""]:
            for part in chop_cells(line, room) or [""]:
                yield Text(part)

    def flow(self, parts: Iterable[Text]) -> Iterator[Text]:
        """Yield lines with as many of some short texts as fit."""
        line = Text()
        for part in parts:
            each = self.cut(part)
            if line and cell_len(line.plain + _GAP + each.plain) > self.width:
                yield line
                line = Text()
            line = (line + Text(_GAP) if line else line) + each
        if line:
            yield line

    def table(self, columns: Sequence[Column[T]], rows: Sequence[T]) -> list[Text]:
        """Return the line of the titles, and a line for each row."""
        chosen = [
            _Filled(each, [_content(self, each.cell(row)) for row in rows]) for each in columns
        ]
        while True:
            room = self.width - len(_GAP) * (len(chosen) - 1)
            last = max(chosen, key=lambda each: each.column.rank)
            if sum(each.width for each in chosen) <= room or not last.column.rank:
                break
            chosen.remove(last)
        spare = max(0, room - sum(each.width for each in chosen))
        for each in sorted(chosen, key=lambda each: each.column.rank):
            more = min(each.natural - each.width, spare)
            each.width += more
            spare -= more
        return [self._line(chosen, number) for number in range(-1, len(rows))]

    def _line(self, columns: Sequence[_Filled], number: int) -> Text:
        """Return the line of a row, or that of the titles for -1."""
        line = Text(no_wrap=True)
        for each in columns:
            title = Text(each.column.title, "bold")
            shown = self.cut(title if number < 0 else each.cells[number], each.width)
            space = Text(" " * (each.width - shown.cell_len))
            line.append(_GAP if line else "")
            line = line + space + shown if each.column.is_number else line + shown + space
        line.rstrip()
        return self.cut(line)


class _Filled:
    """A column with its cells: the width that it needs, and its width, at first the least."""

    def __init__(self, column: Column[Any], cells: Sequence[Text]) -> None:
        self.column, self.cells = column, cells
        title = cell_len(column.title)
        self.natural = max(title, *(each.cell_len for each in cells), 0)
        least = self.natural if column.least is None else max(column.least, title)
        self.width = min(self.natural, least)


def _content(paper: Paper, content: str | Text) -> Text:
    return content if isinstance(content, Text) else paper.cut(content, MAX_CELL)
