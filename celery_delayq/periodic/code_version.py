"""Versions of the code: each announces itself, and the newest one writes its entries.

Workers do so when they start, and again every :data:`ANNOUNCE_SECONDS`. Of the versions that are
alive the one that started last is active. Changes that an older version finds stay until the newer
one is gone. An entry that is wrong, or cannot be read on this host, stays in Redis as it is.

The hash of each entry in code is stored when the entry is written. An entry whose hash is the same
keeps what calls have changed since, also where they have removed it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from uuid import uuid4

from celery import Celery

from celery_delayq.errors import DelayQError
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import definitions_of, said_of, source_of
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.places import Entries, entries_of
from celery_delayq.periodic.state import Periodic, source_in
from celery_delayq.schedule.client import Schedule
from celery_delayq.store.periodic import ActiveVersion, Writing, WrittenEntries
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import batches

logger = logging.getLogger(__name__)

#: Seconds between two announcements of a version, and for which one keeps it alive.
ANNOUNCE_SECONDS = 20.0
VERSION_ALIVE_SECONDS = 60.0

#: Most names in one log line, and most ids in one call that cancels ticks.
MAX_LOGGED_NAMES = 20
CANCEL_BATCH = 1000


class Deployment:
    """The entries in the code of an app, as this process has loaded them."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.source = source_of(app)
        self.definitions: dict[str, Definition] = {}
        #: By name: changes when the code of the entry changes.
        self.definition_hashes: dict[str, str] = {}
        #: Names of invalid entries: their records stay as they are.
        self.left_out: set[str] = set()
        self.version = ""
        self._since: int | None = None
        self._first = True
        self._kept = float("-inf")

    def keep(self, stores: Stores) -> None:
        """Announce this version; if it is the active one, write its missing entries.

        Does nothing when it did so less than :data:`ANNOUNCE_SECONDS` ago.

        Raises
        ------
        redis.exceptions.RedisError
            Redis is away, or refused something.
        """
        if time.monotonic() - self._kept < ANNOUNCE_SECONDS:
            return
        self._kept = time.monotonic()
        if not self.version:
            self._read()
        gate = entries_of(self.app, stores)
        active = self.say(gate)
        if self._first:
            self._warn_of_others(gate, active.others)
        if active.version != self.version:
            if self._first:
                logger.info("Periodic entries not written: a newer version of the code is active")
        elif active.mark != self.version:
            _Rewrite(self, gate, stores.now_ms()).run()
        self._first = False

    def look_again(self) -> None:
        """Let the next :meth:`keep` act at once: Redis may have come back without the entries."""
        self._kept = float("-inf")

    def say(
        self,
        gate: Entries,
        before: str = "",
        then: WrittenEntries | None = None,
    ) -> ActiveVersion:
        """Announce this version; parameters as in :meth:`PeriodicStore.announce_version`."""
        alive = int(VERSION_ALIVE_SECONDS * 1000)
        active = gate.announce_version(
            self.source, self.version, self._since, alive, before=before, then=then
        )
        self._since = active.since
        return active

    def _read(self) -> None:
        self.left_out.clear()
        for name, found in definitions_of(self.app):
            if isinstance(found, Definition):
                self.definitions[name] = found
                self.definition_hashes[name] = said_of(found, self.app.timezone)
            else:
                self.left_out.add(name)
                logger.error("Periodic entry %r in code is left out: %s", name, found)
        hashed = blake2b(digest_size=8)
        for name, definition in sorted(self.definitions.items()):
            hashed.update(
                f"{name}\0{definition.dumps()}\0{self.definition_hashes[name]}\0".encode()
            )
        for name in sorted(self.left_out):
            hashed.update(f"{name}\0\0".encode("utf-8", "surrogatepass"))
        self.version = hashed.hexdigest()

    def _warn_of_others(self, gate: Entries, others: Collection[str]) -> None:
        """Warn where apps fire entries of each other that do not say to which queue."""
        if others and any(
            "queue" not in each.options for each in self._with_those_of(gate, others)
        ):
            logger.warning(
                "Other apps fire periodic entries of this Redis database too (%s): each those of "
                "all, routed by its own settings. Give apps different databases or "
                "global_keyprefixes, or all entries a queue, see docs/periodic.md",
                ", ".join(others),
            )

    def _with_those_of(self, gate: Entries, others: Collection[str]) -> Iterator[Definition]:
        yield from self.definitions.values()
        for name, record in gate.all():
            if source_in(record) in others:
                with suppress(DelayQError):
                    yield Definition.loads(name, record.partition("\n")[2])


class _Rewrite:
    """Write new and changed entries of the code once, and remove those no longer in it.

    Other processes may do so at the same time, for this version or another one. Each stores a mark
    of its own first, and has written everything only if its mark is still there at the end. The
    hashes of entries that it may change are removed first: if it dies, the entries it wrote are not
    taken for entries that calls have changed.
    """

    def __init__(self, code: Deployment, gate: Entries, now: int) -> None:
        self._code = code
        self._gate = gate
        self._now = now
        self._mark = f"{code.version} {uuid4().hex}"
        #: By name, without the entries that are left out.
        self._definition_hashes = {**code.definition_hashes}
        #: Stored hashes of entries that stay: their code is the same, or is invalid now.
        self._kept: Mapping[str, str] = {}
        self._changes: dict[str, str] = {}
        self._removed: dict[str, str] = {}

    def run(self) -> None:
        """Write all entries, unless another process takes over."""
        self._begin()
        try:
            if self._edit(self._gone(), self._remove) and self._edit(
                [*self._code.definitions], self._write
            ):
                hashes = {**self._kept, **self._definition_hashes}
                self._may_go_on(WrittenEntries(self._code.version, hashes))
        finally:
            self._tell()

    def _begin(self) -> None:
        """Store the mark of this process, and the hashes of entries that stay."""
        active = None
        while active is None or active.mark != self._mark:
            there = self._gate.written_entries(self._code.source)
            self._kept = {
                name: stored
                for name, stored in there.definition_hashes.items()
                if name in self._code.left_out or self._code.definition_hashes.get(name) == stored
            }
            active = self._code.say(self._gate, there.mark, WrittenEntries(self._mark, self._kept))

    def _may_go_on(self, then: WrittenEntries | None = None) -> bool:
        active = self._code.say(self._gate, self._mark, then)
        if active.version == self._code.version:
            return active.mark == self._mark  # otherwise another process writes all entries
        # A newer version came meanwhile. This process may have written after it, so the newer
        # version has to write again.
        self._begin()
        return False

    def _gone(self) -> list[str]:
        there_still = self._code.definitions.keys() | self._code.left_out
        return [
            name
            for name, record in self._gate.all()
            if name not in there_still and source_in(record) == self._code.source
        ]

    def _edit(
        self, names: Sequence[str], edit: Callable[[str, str | None], Writing | None]
    ) -> bool:
        goes_on = True

        def may_write() -> bool:
            nonlocal goes_on
            goes_on = self._may_go_on()
            return goes_on

        for _ in self._gate.edit_many(names, edit, may_write):
            self._withdraw()
        return goes_on

    def _remove(self, name: str, there: str | None) -> Writing | None:
        self._changes.pop(name, None)
        self._removed.pop(name, None)
        if there is None or source_in(there) != self._code.source:
            return None
        self._changes[name] = "removed"
        self._removed[name] = there
        return Writing(name, there.partition("\n")[0], "")

    def _write(self, name: str, there: str | None) -> Writing | None:
        self._changes.pop(name, None)
        if name in self._kept:
            return None  # calls may have changed it since
        try:
            return self._edited(self._code.definitions[name], there)
        except Exception as exc:  # schedules are user code
            logger.error("Periodic entry %r in code is left out: %s", name, exc)
            self._definition_hashes.pop(name, None)
            return None

    def _edited(self, new: Definition, there: str | None) -> Writing | None:
        name, zone = new.name, self._code.app.timezone
        line = "" if there is None else there.partition("\n")[0]
        old = None
        if there is not None:
            if source_in(there) != self._code.source:
                logger.warning(
                    "Periodic entry %r in code is left out: there is one of that name that was not "
                    "made by this code; give one of them another name",
                    name,
                )
                self._definition_hashes.pop(name, None)
                return None
            with suppress(DelayQError):  # another version of the code made it
                old = Periodic.unpack(name, there)
        if old is None:
            entry = policy.begin(new, self._now, zone)
        else:
            entry = policy.change(old, new, self._now, zone)
            # The same definition may have other ticks: the app's time zone may have changed.
            if entry.state == old.state:
                return None
        self._changes[name] = "added" if there is None else "changed"
        return Writing(name, line, entry.pack(), entry.look)

    def _withdraw(self) -> None:
        """Cancel the ticks of removed entries that are still scheduled."""
        ticks: list[tuple[str, int]] = []
        for name, record in self._removed.items():
            try:
                entry = Periodic.unpack(name, record)
                ahead = policy.ahead_of(entry, self._code.app.timezone)
            except Exception as exc:  # schedules are user code
                logger.warning("Ticks of %r that are scheduled stay so: %s", name, exc)
            else:
                ticks += [(policy.tick_id(name, tick), tick) for tick in ahead]
        self._removed.clear()
        if ticks:
            with Session(self._code.app) as session:
                schedule = Schedule(session)
                for some in batches(ticks, CANCEL_BATCH):
                    ids, dues = zip(*some, strict=True)
                    schedule.cancel_ids(
                        ids, if_due=dues, reason="its periodic entry is gone", ready=False
                    )

    def _tell(self) -> None:
        told = []
        for change in ("added", "changed", "removed"):
            names = [name for name, its in self._changes.items() if its == change]
            if names:
                more = (
                    f" and {len(names) - MAX_LOGGED_NAMES} more"
                    if len(names) > MAX_LOGGED_NAMES
                    else ""
                )
                told.append(f"{change} {', '.join(map(repr, names[:MAX_LOGGED_NAMES]))}{more}")
        if told:
            logger.info("Periodic entries in code: %s", "; ".join(told))
