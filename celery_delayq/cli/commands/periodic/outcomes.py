"""Outcomes of commands that change periodic entries by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from rich.text import Text

from celery_delayq.cli.items import ItemOutcome, change_each
from celery_delayq.cli.text import quoted, stamp
from celery_delayq.errors import InvalidSchedule, PeriodicUnknown, RecordError
from celery_delayq.utils.text import spelled


class EntryOutcome(NamedTuple):
    """The outcome for one entry, and further values to show."""

    done: bool
    outcome: str
    more: Mapping[str, str] = {}


def change_entries(
    names: Sequence[str], one: Callable[[str], EntryOutcome], *, as_json: bool
) -> bool:
    """Change each entry and print its outcome; return whether all entries were changed."""

    def change(name: str) -> ItemOutcome:
        try:
            became = one(name)
        except PeriodicUnknown:
            became = EntryOutcome(False, "unknown")
        except (RecordError, InvalidSchedule) as exc:
            became = EntryOutcome(False, f"failed: {spelled(str(exc))}")
        text = Text(became.outcome, "green" if became.done else "red")
        text.append(f"  {quoted(name)}", "default")
        for key, value in became.more.items():
            shown = stamp(datetime.fromisoformat(value)) if key == "next" else quoted(value)
            text.append(f"  {key} {shown}", "dim")
        values = {"name": name, "done": became.done, "outcome": became.outcome, **became.more}
        return ItemOutcome(became.done, text, values)

    return change_each(names, change, as_json=as_json)
