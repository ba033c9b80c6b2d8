"""Commits of an archive. No I/O.

Rows are *staged* in a folder that readers skip, then added by one *commit*, and then *published*.
Commits have numbers without gaps, and each number can be used once. So a commit always knows the
complete archive before it. A job that is killed before its commit adds nothing. If a job is killed
after its commit, the next job publishes its rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from celery_delayq.errors import DelayQError

FORMAT, VERSION = "celery_delayq.archive", 1


class ArchiveError(DelayQError):
    """The folder is no archive, has another version, or another job changed it at the same time."""


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
        Name of the broker.
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
        """Return the commit as JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def unpack(cls, text: str, where: str, table: str) -> Commit:
        """Read the text that :meth:`pack` returned.

        Raises
        ------
        ArchiveError
            The text has another version, or is no commit of that table.
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
                raise ArchiveError(f"{where}: this is no archive of {table}")
            return cls(**fields)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise ArchiveError(f"{where}: it cannot be read ({exc}): it is damaged") from exc


def source_of(found: Collection[str], wanted: str | None, own: str | None = None) -> str:
    """Return the name of one broker in an archive, so that brokers are not mixed.

    The name is *wanted*, else our *own*, else the only name in the archive.

    Raises
    ------
    ArchiveError
        There is no broker of that name, or there are several.
    """
    source = wanted or (own if own in found else None)
    if source is None and len(found) == 1:
        return next(iter(found))
    if source is None or source not in found:
        missing = source or own
        names = ", ".join(sorted(found)) or "nothing"
        has = (
            f"the archive has nothing of {missing}, but of"
            if missing
            else "the archive has several"
        )
        raise ArchiveError(f"{has}: {names}; name one by the option source")
    return source
