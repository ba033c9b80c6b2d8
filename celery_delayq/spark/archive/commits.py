"""Commits of an archive. No I/O.

Rows are *staged* where readers do not look, then added by one *commit*, and then *published*.
Commits are numbered without gaps, and each number can be used once, so a commit always knows the
whole archive before it. A job that was killed before its commit has added nothing; after its
commit, the next job publishes the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from celery_delayq.errors import DelayQError

FORMAT, VERSION = "celery_delayq.archive", 1


class ArchiveError(DelayQError):
    """The folder is no archive, has another version, or was changed by another job meanwhile."""


@dataclass(frozen=True)
class Commit:
    """The rows that one job added to one table.

    Attributes
    ----------
    table : str
        ``history``, ``dead_letters`` or ``scheduled``.
    number : int
        Counted from 1.
    made : str
        Time by Redis' clock, in ISO 8601.
    source : str
        Name of the queue.
    rows, unreadable : int
        Number of rows, and of unreadable rows, which have only their bytes.
    reached : Mapping[str, str]
        By source, the offset of the last archived run.
    snapshot : str | None
        Name of the snapshot, for the table ``scheduled``.
    staging : str
        Folder in which the rows were staged.
    files : Mapping[str, int]
        Files in the staging folder, with their sizes in bytes.
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
            It has another version, or is no commit of that table.
        """
        try:
            fields = json.loads(text)
            named, version = fields.pop("format"), fields.pop("version")
            if named == FORMAT and version != VERSION:
                raise ArchiveError(
                    f"{where}: version {version!r} of the format; this version of the package "
                    f"reads {VERSION}"
                )
            if named != FORMAT or fields.get("table") != table:
                raise ArchiveError(f"{where}: it is no archive of {table}")
            return cls(**fields)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise ArchiveError(f"{where}: it cannot be read ({exc}): it is damaged") from exc


def source_of(found: Collection[str], wanted: str | None, own: str | None = None) -> str:
    """Return the name of one queue in an archive, so that several are not mixed.

    It is the *wanted* one, else our *own*, else the only one.

    Raises
    ------
    ArchiveError
        There is no queue of that name, or there are several.
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
