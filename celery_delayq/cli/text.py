"""Times, numbers and ids as people read and type them. No I/O."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from celery_delayq.model.changes.calls import calls_of_message
from celery_delayq.model.envelope import entry_id
from celery_delayq.utils.text import spelled


def quoted(text: str) -> str:
    r"""Return a text quoted for bash and zsh: ``mail-7``, ``'a b'``, ``$'a\nb'``."""
    if text.isprintable():
        return shlex.quote(text)
    special = {"\\": r"\\", "'": r"\'"}
    return f"$'{spelled(''.join(special.get(one, one) for one in text))}'"


def shown_id(id: str) -> str:
    """Return an id that can be pasted into a command line, with ``%00`` for a NUL."""
    return quoted(entry_id(id))


def argument_texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield ``args`` and ``kwargs`` with their values as JSON, the form that ``--args`` takes.

    Arguments without a form in JSON have the text of their sender; None if nothing is known.
    """
    for name in ("args", "kwargs"):
        value = values[name]
        known = value is not None
        yield name, json.dumps(value, ensure_ascii=False) if known else values[f"{name}repr"]


def calls_inside(message: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
    """Return the calls inside a task message as JSON types; None if they are not known."""
    if message is None or (found := calls_of_message(message)) is None:
        return None
    return [
        {"part": part.value, "task": task, "number": number}
        for (part, task), number in found.items()
    ]


def text_of_calls(calls: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return ``chain shop.mail, callback shop.done (3 times)``; None without calls."""
    texts = [
        f"{each['part']} {spelled(each['task'])}"
        + (f" ({each['number']:,} times)" if each["number"] > 1 else "")
        for each in calls or ()
    ]
    return ", ".join(texts) or None


def number_of(number: int, one: str, many: str) -> str:
    """Return ``1 entry``, ``1,204 entries``."""
    return f"{number:,} {one if number == 1 else many}"


def stamp(moment: datetime) -> str:
    """Return a time by this machine's clock, such as ``2030-01-31T09:00:00+01:00``.

    The text is exact and one word for a shell.
    :func:`~celery_delayq.model.typed_times.read_typed_time` reads it as the same time.
    """
    try:
        there = moment.astimezone()
    except (OverflowError, ValueError, OSError):  # at the limits of datetime
        there = moment.astimezone(timezone.utc)
    whole = there.microsecond % 1000 == 0
    return there.isoformat(timespec="milliseconds" if there.microsecond and whole else "auto")
