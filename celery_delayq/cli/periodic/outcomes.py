"""Outcomes of commands that change periodic entries by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.text import Text

from celery_delayq.cli import screen
from celery_delayq.cli.text import quoted, stamp
from celery_delayq.errors import InvalidSchedule, PeriodicUnknown, RecordError
from celery_delayq.utils.text import spelled


class EntryOutcome(NamedTuple):
    """The outcome for an entry, and further values to show."""

    done: bool
    outcome: str
    more: Mapping[str, str] = {}


def change_each(names: Sequence[str], one: Callable[[str], EntryOutcome], *, as_json: bool) -> bool:
    """Change each entry and print its outcome; return whether all were changed."""
    output = screen.console()
    outcomes: list[dict[str, Any]] = []
    try:
        for name in dict.fromkeys(names):
            try:
                became = one(name)
            except PeriodicUnknown:
                became = EntryOutcome(False, "unknown")
            except (RecordError, InvalidSchedule) as exc:
                became = EntryOutcome(False, f"failed: {spelled(str(exc))}")
            result = {"name": name, "done": became.done, "outcome": became.outcome}
            outcomes.append({**result, **became.more})
            if as_json:
                continue
            text = Text(became.outcome, "green" if became.done else "red")
            text.append(f"  {quoted(name)}", "default")
            for key, value in became.more.items():
                shown = stamp(datetime.fromisoformat(value)) if key == "next" else quoted(value)
                text.append(f"  {key} {shown}", "dim")
            output.print(text, soft_wrap=True)
    finally:  # report what was done before an error
        if as_json:
            screen.print_json({"outcomes": outcomes})
    return all(each["done"] for each in outcomes)
