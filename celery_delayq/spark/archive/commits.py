"""What was added to an archive, and how: the same for folders and databases. No I/O.

Rows are *staged* where no reader looks, then one *commit* says that they belong to the archive, and
then they are *published*. Commits have numbers without a gap, and of two with one number only one
can be made: so each is made knowing all that the archive has. A job that was killed before its
commit has added nothing; what was killed after it is published by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from celery_delayq.errors import DelayQError

FORMAT, VERSION = "celery_delayq.archive", 1


class ArchiveError(DelayQError):
    """An archive is none, is of another version, or was changed by another job meanwhile."""


@dataclass(frozen=True)
class Commit:
    """What one job has added to one table.

    Attributes
    ----------
    table : str
        ``history``, ``dead_letters`` or ``scheduled``.
    number : int
        From 1.
    made : str
        When, by Redis' clock, in ISO 8601.
    source : str
        From which queue.
    rows, unreadable : int
        How many, and how many of them only have their bytes.
    reached : Mapping[str, str]
        By source, the offset of the last run that is in the archive.
    snapshot : str | None
        Its name.
    staging : str
        Where they were before.
    files : Mapping[str, int]
        Files in it, with their sizes in bytes.
    """

    table: str
    number: int
    made: str
    source: str
    rows: int = 0
    unreadable: int = 0
    reached: Mapping[str, str] = field(default_factory=dict)
    snapshot: str | None = None
    staging: str = ""
    files: Mapping[str, int] = field(default_factory=dict)

    def pack(self) -> str:
        """Return it as JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def unpack(cls, text: str, where: str, table: str) -> Commit:
        """Read what :meth:`pack` wrote.

        Raises
        ------
        ArchiveError
            It is of a later version, or no commit of that table.
        """
        try:
            fields = json.loads(text)
            named, version = fields.pop("format"), fields.pop("version")
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise ArchiveError(f"{where}: it cannot be read ({exc}): it is damaged") from exc
        if named == FORMAT and version != VERSION:
            raise ArchiveError(
                f"{where}: version {version!r} of the format; this version of the package reads "
                f"{VERSION}"
            )
        if named != FORMAT or fields.get("table") != table:
            raise ArchiveError(f"{where}: it is of no archive of {table}")
        try:
            return cls(**fields)
        except TypeError as exc:
            raise ArchiveError(f"{where}: it cannot be read ({exc}): it is damaged") from exc


def source_of(found: Collection[str], wanted: str | None, own: str | None = None) -> str:
    """Return which of the queues in an archive is meant: those of others are not mixed in.

    Without a *wanted* one it is our *own*, or the only one that there is.

    Raises
    ------
    ArchiveError
        There is none of that name, or there are several.
    """
    meant = wanted or (own if own in found else None)
    if meant is None and len(found) == 1:
        return next(iter(found))
    if meant is None or meant not in found:
        none = meant or own
        there = ", ".join(sorted(found)) or "nothing"
        has = f"the archive has nothing of {none}, but of" if none else "the archive has several"
        raise ArchiveError(f"{has}: {there}; name one by the option source")
    return meant
