"""Decides which version of the code writes the entries in code, and writes them.

A *version* is a hash of all entries in the code of an app. A worker takes these steps when it
starts, and again every :data:`ANNOUNCE_SECONDS` seconds:

1. Announce the version. Of the live versions, the one with the latest first announcement is
   active.
2. If another version is active, change nothing. When the newer version is no longer live, the older
   version writes its entries again.
3. If the *mark* in Redis is the version, its entries are already written: change nothing.
4. Take the turn: store a mark of this process.
5. Remove the entries that are no longer in the code. Write new and changed entries. Stop as soon as
   the mark is no longer the mark of this process.
6. Store the version as the mark.

A process that dies after step 4 leaves its mark. The next process that announces its version then
starts at step 4.

The hash of each written entry is stored with the mark. If the hash of an entry in the code equals
the stored hash, the entry is not written, so changes by calls stay. This includes the removal of
the entry. Step 4 deletes all other stored hashes. So an entry that was only written by a process
that died does not count as changed by a call.

An entry that is invalid, or unreadable on this host, stays unchanged in Redis.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from uuid import uuid4

from celery import Celery

from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import code_hash_of, definitions_of, source_of
from celery_delayq.periodic.definition import Definition, check_call
from celery_delayq.periodic.entries import Periodic, source_in
from celery_delayq.periodic.places import Entries, entries_of
from celery_delayq.schedule.client import Schedule
from celery_delayq.store.periodic import ActiveVersion, EntryWrite, WrittenEntries
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import batches

logger = logging.getLogger(__name__)

#: Seconds between two announcements of a version.
ANNOUNCE_SECONDS = 20.0

#: Seconds after its last announcement for which a version is live.
VERSION_ALIVE_SECONDS = 60.0

#: Seconds after its last announcement for which the first announcement of a version is stored.
VERSION_STORED_SECONDS = 7 * 24 * 3600.0

#: Most names in one log line.
MAX_LOGGED_NAMES = 20

#: Most ids in one call that cancels ticks.
CANCEL_BATCH = 1000


class Deployment:
    """The entries in the code of an app, as loaded by this process."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.source = source_of(app)
        self.definitions: dict[str, Definition] = {}
        #: By name. A hash changes when the code of its entry changes.
        self.code_hashes: dict[str, str] = {}
        #: Names of invalid entries.
        self.invalid: set[str] = set()
        self.version = ""
        self._since: int | None = None
        self._first = True
        self._kept = float("-inf")

    def keep(self, stores: Stores) -> None:
        """Take all steps, at most once in :data:`ANNOUNCE_SECONDS` seconds.

        Raises
        ------
        redis.exceptions.RedisError
            Redis cannot be reached, or refuses a command.
        """
        if time.monotonic() - self._kept < ANNOUNCE_SECONDS:
            return
        self._kept = time.monotonic()
        if not self.version:
            self._read_code()
        gate = entries_of(self.app, stores)
        active = self.announce(gate)
        if self._first:
            self._warn_of_others(gate, active.others)
        if active.version != self.version:
            if self._first:
                logger.info("Periodic entries not written: a newer version of the code is active")
        elif active.mark != self.version:
            _Turn(self, gate, stores.now_ms()).write_entries()
        self._first = False

    def kept_names(self, stores: Stores) -> Collection[str] | None:
        """Return the entries of the code that stay when the first worker of this code starts.

        It replaces or removes all other entries of the same source. Changes nothing.

        Returns
        -------
        Collection[str] | None
            The names; None if all stay: they are written already, or a newer version is active.
        """
        if not self.version:
            self._read_code()
        gate = entries_of(self.app, stores)
        versions = gate.announced_versions(self.source)
        written = gate.written_entries(self.source)
        if written.mark == self.version or not would_be_active(
            self.version, versions, stores.now_ms()
        ):
            return None
        return self.invalid | {
            name
            for name, code_hash in self.code_hashes.items()
            if written.definition_hashes.get(name) == code_hash
        }

    def look_again(self) -> None:
        """Let the next :meth:`keep` take the steps at once.

        Redis may have restarted without the entries.
        """
        self._kept = float("-inf")

    def announce(
        self, gate: Entries, before: str = "", then: WrittenEntries | None = None
    ) -> ActiveVersion:
        """Announce this version.

        The parameters are those of
        :meth:`~celery_delayq.store.periodic.PeriodicStore.announce_version`.
        """
        alive_ms = int(VERSION_ALIVE_SECONDS * 1000)
        active = gate.announce_version(
            self.source, self.version, self._since, alive_ms, before=before, then=then
        )
        self._since = active.since
        return active

    def _read_code(self) -> None:
        self.invalid.clear()
        for name, found in definitions_of(self.app):
            if isinstance(found, Definition):
                self._warn_of_call(found)
                self.definitions[name] = found
                self.code_hashes[name] = code_hash_of(found, self.app.timezone)
            else:
                self.invalid.add(name)
                logger.error("Periodic entry %r in code is left out: %s", name, found)
        hashed = blake2b(digest_size=8)
        for name, definition in sorted(self.definitions.items()):
            hashed.update(f"{name}\0{definition.dumps()}\0{self.code_hashes[name]}\0".encode())
        for name in sorted(self.invalid):
            hashed.update(f"{name}\0\0".encode("utf-8", "surrogatepass"))
        self.version = hashed.hexdigest()

    def _warn_of_call(self, definition: Definition) -> None:
        """Log an error if the task of an entry does not take its arguments. The entry is written
        all the same, and the tasks of its ticks fail.
        """
        try:
            check_call(self.app, definition)
        except ConfigError as exc:
            logger.error("Ticks of periodic entry %r in code will fail: %s", definition.name, exc)

    def _warn_of_others(self, gate: Entries, others: Collection[str]) -> None:
        """Warn if other apps fire the same entries and an entry names no queue."""
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


def would_be_active(version: str, versions: Mapping[str, tuple[int, int]], now: int) -> bool:
    """Return whether a version would be active if it was announced now.

    Decides as ``periodic/announce_version.lua`` does.

    Parameters
    ----------
    versions : Mapping[str, tuple[int, int]]
        The announced versions with their first and last announcements (ms).
    now : int
        Redis' clock (ms).
    """
    alive, stored = (int(s * 1000) for s in (VERSION_ALIVE_SECONDS, VERSION_STORED_SECONDS))
    known = {name: times for name, times in versions.items() if now - times[1] < stored}
    if version not in known:
        return True
    newest = max(last for _, last in known.values())
    passed = min(max(now - newest, 0), math.ceil(alive / 3))
    own = known[version][0], version
    return all(
        (first, name) <= own
        for name, (first, last) in known.items()
        if newest - last + passed < alive
    )


class _TurnLost(Exception):
    """The mark is not the mark of this process any more, or another version is active."""


class _Turn:
    """Steps 4 to 6. Other processes may take these steps at the same time, for any version."""

    def __init__(self, code: Deployment, gate: Entries, now: int) -> None:
        self._code = code
        self._gate = gate
        self._now = now
        self._mark = f"{code.version} {uuid4().hex}"
        #: Stored hashes of entries that are not written: their code is unchanged, or is invalid
        #: now.
        self._kept_hashes: Mapping[str, str] = {}
        #: Hashes to store in step 6, by name: of all entries in code that are not left out.
        self._code_hashes = {**code.code_hashes}
        #: By name: "added", "changed" or "removed".
        self._changes: dict[str, str] = {}
        #: Records of removed entries whose ticks are still scheduled.
        self._removed: dict[str, str] = {}

    def write_entries(self) -> None:
        """Write all entries, until another process takes the turn."""
        self._take_turn()
        names = [*self._names_not_in_code(), *self._code.definitions]
        try:
            for _ in self._gate.edit_many(names, self._edited, self._announce):
                self._cancel_ticks()
            hashes = {**self._kept_hashes, **self._code_hashes}
            self._announce(WrittenEntries(self._code.version, hashes))
        except _TurnLost:
            pass
        finally:
            self._log_changes()

    def _take_turn(self) -> None:
        """Store the mark of this process, and the hashes of entries that are not written."""
        active = None
        while active is None or active.mark != self._mark:
            written = self._gate.written_entries(self._code.source)
            self._kept_hashes = {
                name: stored
                for name, stored in written.definition_hashes.items()
                if name in self._code.invalid or self._code.code_hashes.get(name) == stored
            }
            then = WrittenEntries(self._mark, self._kept_hashes)
            active = self._code.announce(self._gate, written.mark, then)

    def _announce(self, then: WrittenEntries | None = None) -> None:
        """Announce the version. With *then*, replace the mark of this process by *then*.

        Raises
        ------
        _TurnLost
            Another process has the turn.
        """
        active = self._code.announce(self._gate, self._mark, then)
        if active.version != self._code.version:
            # This process may have overwritten an entry of the newer version. With the mark of this
            # process, the newer version writes all of its entries again.
            self._take_turn()
            raise _TurnLost
        if active.mark != (self._mark if then is None else then.mark):
            raise _TurnLost

    def _names_not_in_code(self) -> list[str]:
        """Return the names of entries that an earlier version of the code had."""
        in_code = self._code.definitions.keys() | self._code.invalid
        return [
            name
            for name, record in self._gate.all()
            if name not in in_code and source_in(record) == self._code.source
        ]

    def _edited(self, name: str, record: str | None) -> EntryWrite | None:
        """Return the new record of an entry; None to leave the entry unchanged.

        Called again if the record has changed since it was read.
        """
        self._changes.pop(name, None)
        self._removed.pop(name, None)
        definition = self._code.definitions.get(name)
        if definition is None:
            return self._remove(name, record)
        if name in self._kept_hashes:
            return None  # a call may have changed it since
        try:
            return self._write(definition, record)
        except Exception as exc:  # schedules are user code
            self._leave_out(name, exc, logging.ERROR)
            return None

    def _remove(self, name: str, record: str | None) -> EntryWrite | None:
        if record is None or source_in(record) != self._code.source:
            return None
        self._changes[name] = "removed"
        self._removed[name] = record
        return EntryWrite(name, record.partition("\n")[0], "")

    def _write(self, new: Definition, record: str | None) -> EntryWrite | None:
        name, zone, old = new.name, self._code.app.timezone, None
        if record is not None:
            if source_in(record) != self._code.source:
                why = (
                    "there is one of that name that was not made by this code; give one of them "
                    "another name"
                )
                self._leave_out(name, why, logging.WARNING)
                return None
            with suppress(DelayQError):  # made by another version of the package
                old = Periodic.unpack(name, record)
        if old is None:
            entry = policy.begin(new, self._now, zone)
        else:
            entry = policy.change(old, new, self._now, zone)
            # An equal definition may have other ticks, because the app's time zone may have
            # changed.
            if entry.state == old.state:
                return None
        self._changes[name] = "added" if record is None else "changed"
        return EntryWrite(name, (record or "").partition("\n")[0], entry.pack(), entry.next_look_ms)

    def _leave_out(self, name: str, why: object, level: int) -> None:
        logger.log(level, "Periodic entry %r in code is left out: %s", name, why)
        self._code_hashes.pop(name, None)

    def _cancel_ticks(self) -> None:
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

    def _log_changes(self) -> None:
        parts = []
        for change in ("added", "changed", "removed"):
            names = [name for name, its in self._changes.items() if its == change]
            if names:
                shown = ", ".join(map(repr, names[:MAX_LOGGED_NAMES]))
                more = len(names) - MAX_LOGGED_NAMES
                parts.append(f"{change} {shown}{f' and {more} more' if more > 0 else ''}")
        if parts:
            logger.info("Periodic entries in code: %s", "; ".join(parts))
