"""Periodic entries in Redis: read, write, fire."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast
from uuid import uuid4

from celery_delayq.model.envelope import Entry, Record
from celery_delayq.model.script_values import to_bytes, to_text
from celery_delayq.store.dead_letters import DeadLetterStore
from celery_delayq.store.scan import ScanStore
from celery_delayq.store.scripting.calls import EntriesCall
from celery_delayq.store.scripting.replies import read_time
from celery_delayq.store.scripting.runner import ScriptRunner, StorePart
from celery_delayq.utils import foreign
from celery_delayq.utils.portions import portions

logger = logging.getLogger(__name__)

Written = Literal["done", "changed", "unknown"]

_WRITE_OUTCOMES: dict[str, Written] = {"d": "done", "c": "changed", "u": "unknown"}

#: Codes of ticks that ``periodic/fire.lua`` has stored, and of ticks that it has refused because
#: another task has the unique key of the entry.
STORED_CODES, OVERLAP_CODES = frozenset("srSR"), frozenset("KE")

#: Most entries that one call writes.
WRITE_BATCH = 100


class Upcoming(NamedTuple):
    """The periodic entries to look at now.

    Attributes
    ----------
    now : int
        Redis' clock in µs.
    next : int | None
        The time of the look at the next entry (ms).
    records : list[tuple[str, str]]
        Name and record of each entry.
    set_back : str
        If Redis' clock was set back: the time of the fleet's latest look before (ms); else ``""``.
    fleet : int
        Number of runners that listen to changes; 0 if Redis does not tell.
    """

    now: int
    next: int | None
    records: list[tuple[str, str]]
    set_back: str = ""
    fleet: int = 0


class EntryWrite(NamedTuple):
    """A change of an entry, by compare-and-set of its expected state.

    Attributes
    ----------
    line : str
        The expected first line of the record; ``""`` if no entry is expected.
    record : str
        The new record; ``""`` to remove the entry.
    next_look_ms : int | None
        The time of the next look at the entry (ms); None for never.
    """

    name: str
    line: str
    record: str
    next_look_ms: int | None = None


class EntryTicks(NamedTuple):
    """Ticks of one entry that go to one queue, and the entry's state before and after.

    Attributes
    ----------
    line : str
        The expected first line of the record. If the record has another line, nothing changes.
    then, then_look : str, int | None
        The new first line, and the time of the next look at the entry (ms; None for never).
    refused, refused_look : str, int | None
        The same if no tick is stored, since another task has the entry's unique key.
    entries : Sequence[Entry]
        The messages of the ticks.
    """

    name: str
    line: str
    then: str
    then_look: int | None
    refused: str
    refused_look: int | None
    entries: Sequence[Entry] = ()


class ActiveVersion(NamedTuple):
    """The active code version.

    Attributes
    ----------
    version : str
        The newest live version, by the time of its first announcement.
    mark : str
        The version whose entries were written last, or the process that is writing; ``""`` at
        first.
    since : int
        The time at which the calling version was announced first (ms).
    others : tuple[str, ...]
        Other sources that have a live version.
    """

    version: str
    mark: str
    since: int
    others: tuple[str, ...] = ()


class WrittenEntries(NamedTuple):
    """The entries of the code version that was written last.

    Attributes
    ----------
    mark : str
        As in :class:`ActiveVersion`.
    definition_hashes : Mapping[str, str]
        Definition hash by name. While a process is writing: only of entries that no version has
        changed meanwhile.
    """

    mark: str
    definition_hashes: Mapping[str, str]


class PeriodicStore(StorePart):
    """The part of the store for periodic entries."""

    def __init__(self, runner: ScriptRunner) -> None:
        super().__init__(runner)
        self._scan = ScanStore(runner)

    def claim_due(
        self, limit: int, leave_ms: int, but: Iterable[str] = (), *, corrected: str = ""
    ) -> Upcoming:
        """Return entries to look at now, except *but*. Other callers get them after *leave_ms*.

        *corrected* is the former ``set_back``, if :meth:`correct_looks` was called for it.
        """
        args = [limit, leave_ms, corrected, self._keys.periodic_wake, *map(to_bytes, but)]
        now, following, latest, fleet, *rest = self._run("periodic/claim_due", None, args)
        texts = [to_text(each) for each in rest]
        return Upcoming(
            int(now),
            read_time(following) if following else None,
            list(zip(texts[::2], texts[1::2], strict=True)),
            to_text(latest),
            int(fleet),
        )

    def correct_looks(self, now: int, correct: Callable[[str, str], EntryWrite | None]) -> None:
        """Correct the entries that wait for a late time, after Redis' clock was set back.

        Parameters
        ----------
        now : int
            Redis' clock (ms).
        correct : Callable[[str, str], EntryWrite | None]
            Returns the correct state for an entry's name and record; None for no change.
        """
        for page in portions(self.all(), WRITE_BATCH, lambda entry: len(entry[1])):
            names = [to_bytes(name) for name, _ in page]
            found = self._runner.client.zmscore(self._keys.periodic_at, names)
            looks = cast("list[float | None]", found)
            writings = []
            for (name, record), look in zip(page, looks, strict=True):
                writing = correct(name, record)
                late = look is not None and look > now
                if writing is not None and (
                    writing.record != record or (late and writing.next_look_ms != look)
                ):
                    writings.append(writing)
            if writings:
                self.write(writings)

    def write(self, writings: Sequence[EntryWrite]) -> list[Written]:
        """Write entries, each by compare-and-set of its expected state."""
        written: list[Written] = []
        for some in portions(writings, WRITE_BATCH, lambda writing: len(writing.record)):
            args: list[Any] = [self._keys.periodic_wake]
            for name, line, record, look in some:
                args += to_bytes(name), to_bytes(line), to_bytes(record), _ms(look)
            reply = self._run("periodic/compare_and_set", None, args)
            written += [_WRITE_OUTCOMES[code] for code in reply.decode()]
        return written

    def edit(self, name: str, edit: Callable[[str | None], EntryWrite | None]) -> str | None:
        """Change an entry by a function of its record. Repeat this if the entry changed meanwhile.

        Parameters
        ----------
        edit : Callable[[str | None], EntryWrite | None]
            Called with the record, or None if the entry does not exist. Returns None for no change.

        Returns
        -------
        str | None
            The record before the change.
        """
        while True:
            before = self.get(name)
            writing = edit(before)
            if writing is None or self.write([writing]) != ["changed"]:
                return before

    def edit_many(
        self,
        names: Sequence[str],
        edit: Callable[[str, str | None], EntryWrite | None],
        check: Callable[[], object],
    ) -> Iterator[int]:
        """Change entries by a function of name and record, as :meth:`edit` does.

        Yield the number of changed entries after each batch.

        *check* is called after each read and before the write, which notices later changes. *check*
        raises an error to stop.
        """
        for start in range(0, len(names), WRITE_BATCH):
            batch = names[start : start + WRITE_BATCH]
            changed = 0
            while batch:
                found = self._scan.values(self._keys.periodic, [to_bytes(name) for name in batch])
                there = [None if data is None else to_text(data) for data in found]
                check()
                writings = [edit(name, record) for name, record in zip(batch, there, strict=True)]
                some = [writing for writing in writings if writing is not None]
                written = self.write(some) if some else []
                changed += written.count("done")
                pairs = zip(some, written, strict=True)
                batch = [writing.name for writing, became in pairs if became == "changed"]
            yield changed

    def fire_call(self, queue: str, some: Sequence[EntryTicks]) -> EntriesCall:
        """Return the call that schedules ticks for one queue. A repeated call changes nothing."""
        call = self._runner.entries_call("periodic/fire", queue)
        for ticks in some:
            call.args += ticks.name, ticks.line, ticks.then, _ms(ticks.then_look)
            call.args += ticks.refused, _ms(ticks.refused_look), len(ticks.entries)
            for entry in ticks.entries:
                call.add(entry)
        return call

    def fire_in_all(self, ticks: EntryTicks, queues: Mapping[str, Sequence[Entry]]) -> str:
        """Schedule ticks of one entry that each go to several queues.

        A script works on one queue, so one transaction calls a script for each queue: either all
        scripts store their ticks or, if another process was first, none does. Task ids cannot
        prevent a second run: Redis forgets the id of an ended task, and a late caller would store
        its tick again.

        The first queue decides whether the unique key of the entry is free. If another queue is
        broken, its ticks become dead letters: another attempt would store the ticks of all other
        queues twice.

        Returns
        -------
        str
            The codes of ``periodic/fire.lua`` in the first queue.

        Raises
        ------
        StoreFull, BrokerUnavailable, CommandRefused
            Nothing was stored, since Redis is full or away, or the first queue is broken.
        """
        (first, entries), *others = queues.items()
        # A line unique to this transaction: another process may have written the same `then`.
        between = ticks._replace(
            line=f"{ticks.then} {uuid4().hex}", refused=ticks.then, refused_look=ticks.then_look
        )
        same = between._replace(then=between.line, refused=between.line)
        calls = [
            self.fire_call(first, [ticks._replace(then=between.line, entries=entries)]),
            *(self.fire_call(queue, [same._replace(entries=some)]) for queue, some in others),
            self.fire_call(first, [between]),
        ]
        replies = self._runner.run_all(calls, transaction=True)
        for reply in (replies[0], replies[-1]):
            if isinstance(reply, Exception):
                raise reply
        codes = fired(replies[0])[0]
        if codes != "-" and not OVERLAP_CODES.issuperset(codes):
            for (queue, some), reply in zip(others, replies[1:-1], strict=True):
                if isinstance(reply, Exception):
                    self._dead_letter(queue, ticks.name, some, reply)
        return codes

    def _dead_letter(
        self, queue: str, name: str, entries: Sequence[Entry], error: Exception
    ) -> None:
        """Make dead letters of the ticks that a broken queue has refused."""
        logger.error(
            "Queue %r refused ticks of periodic entry %r, they are dead letters: %s",
            queue,
            name,
            error,
        )
        for entry in entries:
            reason = f"tick of {name} refused: {error}"
            message = Record.unpack(entry.data).message
            DeadLetterStore(self._runner).add(queue, entry.id, reason, message)

    def get(self, name: str) -> str | None:
        """Return the record of an entry; None if it does not exist."""
        found = cast("bytes | None", self._runner.client.hget(self._keys.periodic, to_bytes(name)))
        return None if found is None else to_text(found)

    def all(self) -> Iterator[tuple[str, str]]:
        """Yield name and record of every entry, unordered; some may come twice (HSCAN)."""
        for name, record in self._scan.fields(self._keys.periodic):
            yield to_text(name), to_text(record)

    def count(self) -> int:
        """Return the number of entries."""
        return cast(int, self._runner.client.hlen(self._keys.periodic))

    def announce_version(
        self,
        source: str,
        version: str,
        since: int | None,
        alive_ms: int,
        *,
        before: str = "",
        then: WrittenEntries | None = None,
    ) -> ActiveVersion:
        """Announce a code version (``periodic/announce_version.lua``). Return the active version.

        Parameters
        ----------
        since : int | None
            The time at which the version was announced first, if known (ms).
        alive_ms : int
            ms for which an announced version is live.
        then : WrittenEntries | None
            Stored as the last written entries, if the mark is still *before*.
        """
        args: list[Any] = [source, version, _ms(since), alive_ms, to_bytes(before)]
        args += ["", ""] if then is None else [then.mark, json.dumps({**then.definition_hashes})]
        active, mark, own, *others = self._run("periodic/announce_version", None, args)
        return ActiveVersion(
            to_text(active), to_text(mark), int(own), tuple(sorted(map(to_text, others)))
        )

    def announced_versions(self, source: str) -> dict[str, tuple[int, int]]:
        """Return the announced code versions with their first and last announcements (ms)."""
        found = cast("dict[bytes, bytes]", self._runner.client.hgetall(self._keys.code_versions))
        versions = {}
        for field, times in found.items():
            its_source, is_version, version = to_text(field).rpartition("\0")
            first, last = map(foreign.parse_integer, [*times.split(b" "), b"", b""][:2])
            if is_version and its_source == source and first is not None and last is not None:
                versions[version] = first, last
        versions.pop("", None)
        return versions

    def written_entries(self, source: str) -> WrittenEntries:
        """Return the entries of the code that were written last."""
        fields = [f"{source}\0", f"{source}\0\0"]
        mark, definition_hashes = self._runner.client.hmget(self._keys.code_versions, fields)
        try:
            found = foreign.loads(definition_hashes or b"{}")
        except ValueError:
            found = None
        return WrittenEntries(to_text(mark or b""), found if isinstance(found, dict) else {})


def fired(reply: Any) -> list[str]:
    """Return the codes of ``periodic/fire.lua`` for each entry."""
    return [each.decode() for each in reply]


def _ms(ms: int | None) -> int | str:
    return "" if ms is None else ms
