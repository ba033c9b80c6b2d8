"""The gateway to periodic entries in Redis."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast
from uuid import uuid4

from celery_delayq.model.envelope import Entry, Record
from celery_delayq.model.lookup import to_bytes, to_text
from celery_delayq.store.dead_letters import DeadLetterStore
from celery_delayq.store.scan import ScanStore
from celery_delayq.store.scripting.calls import Puts
from celery_delayq.store.scripting.replies import read_time
from celery_delayq.store.scripting.runner import ScriptRunner, StorePart
from celery_delayq.utils import foreign
from celery_delayq.utils.portions import portions

logger = logging.getLogger(__name__)

Written = Literal["done", "changed", "unknown"]

_WRITE_OUTCOMES: dict[str, Written] = {"d": "done", "c": "changed", "u": "unknown"}


#: Most entries that one call writes.
WRITE_BATCH = 100


class Upcoming(NamedTuple):
    """Periodic entries to look at.

    Attributes
    ----------
    now : int
        Redis' clock, µs.
    next : int | None
        When to look at the next one (ms).
    records : list[tuple[str, str]]
        Name and record of each.
    set_back : str
        The latest look of anybody when Redis' clock was set back since, else ``""``.
    fleet : int
        How many listen to changes, 0 where Redis does not say.
    """

    now: int
    next: int | None
    records: list[tuple[str, str]]
    set_back: str = ""
    fleet: int = 0


class Writing(NamedTuple):
    """A change of an entry, by compare-and-set of its expected state.

    Attributes
    ----------
    line : str
        The expected first line of its record, ``""`` where no entry is expected.
    record : str
        The new record, ``""`` to remove it.
    look : int | None
        When to look at it (ms), None for never.
    """

    name: str
    line: str
    record: str
    look: int | None = None


class EntryTicks(NamedTuple):
    """Ticks of one entry that go to one queue, and the entry's state before and after.

    Attributes
    ----------
    line : str
        The expected first line of the record; where it is another one, nothing is done.
    then, then_look : str, int | None
        The line after that, and when to look at the entry next (ms, None for never).
    refused, refused_look : str, int | None
        The same where no tick was stored, since another task has the entry's unique key.
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
    """The active one of the versions of the entries in code.

    Attributes
    ----------
    version : str
        The version that came last among the live ones.
    mark : str
        The version whose entries were written last, or the process that writes; ``""`` at first.
    since : int
        When the asking version was announced first (ms).
    others : tuple[str, ...]
        Other sources that have a live version.
    """

    version: str
    mark: str
    since: int
    others: tuple[str, ...] = ()


class WrittenEntries(NamedTuple):
    """The entries in code that were written last.

    Attributes
    ----------
    mark : str
        As in :class:`ActiveVersion`.
    definition_hashes : Mapping[str, str]
        Definition hash by name. While a process writes: only of entries that no version has
        changed since.
    """

    mark: str
    definition_hashes: Mapping[str, str]


class PeriodicStore(StorePart):
    """The part of the gateway for periodic entries."""

    def __init__(self, runner: ScriptRunner) -> None:
        super().__init__(runner)
        self._pair = [runner.keys.periodic, runner.keys.periodic_at]
        self._scan = ScanStore(runner)

    def claim_due(
        self, limit: int, leave_ms: int, but: Iterable[str] = (), *, put_right: str = ""
    ) -> Upcoming:
        """Return entries to look at, which others leave alone for so many ms; none of *but*.

        *put_right* is the ``set_back`` after which :meth:`put_right` was done.
        """
        args = [limit, leave_ms, put_right, self._keys.periodic_wake, *map(to_bytes, but)]
        keys = [*self._pair, self._keys.clock]
        now, following, latest, fleet, *rest = self._run("periodic/claim_due", keys, args)
        texts = [to_text(each) for each in rest]
        return Upcoming(
            int(now),
            read_time(following) if following else None,
            list(zip(texts[::2], texts[1::2], strict=True)),
            to_text(latest),
            int(fleet),
        )

    def put_right(self, now: int, right: Callable[[str, str], Writing | None]) -> None:
        """Let entries go on that wait for a time which Redis' clock has left again.

        Parameters
        ----------
        now : int
            Redis' clock (ms).
        right : Callable[[str, str], Writing | None]
            Gives by name and record how an entry is to be; None leaves it as it is.
        """
        for page in portions(self.all(), WRITE_BATCH, lambda entry: len(entry[1])):
            names = [to_bytes(name) for name, _ in page]
            found = self._runner.client.zmscore(self._pair[1], names)
            looks = cast("list[float | None]", found)
            writings = []
            for (name, record), look in zip(page, looks, strict=True):
                writing = right(name, record)
                late = look is not None and look > now
                if writing is not None and (
                    writing.record != record or (late and writing.look != look)
                ):
                    writings.append(writing)
            if writings:
                self.write(writings)

    def write(self, writings: Sequence[Writing]) -> list[Written]:
        """Write entries, each by compare-and-set of its expected state."""
        written: list[Written] = []
        for some in portions(writings, WRITE_BATCH, lambda writing: len(writing.record)):
            args: list[Any] = [self._keys.periodic_wake]
            for name, line, record, look in some:
                args += to_bytes(name), to_bytes(line), to_bytes(record), _ms(look)
            reply = self._run("periodic/compare_and_set", list(self._pair), args)
            written += [_WRITE_OUTCOMES[code] for code in reply.decode()]
        return written

    def edit(self, name: str, edit: Callable[[str | None], Writing | None]) -> str | None:
        """Change an entry by a function of its record, again if it was changed meanwhile.

        Parameters
        ----------
        edit : Callable[[str | None], Writing | None]
            Gets None where there is no entry of that name, and gives None to leave it as it is.

        Returns
        -------
        str | None
            The record that was there before.
        """
        while True:
            before = self.get(name)
            writing = edit(before)
            if writing is None or self.write([writing]) != ["changed"]:
                return before

    def edit_many(
        self,
        names: Sequence[str],
        edit: Callable[[str, str | None], Writing | None],
        check: Callable[[], object],
    ) -> Iterator[int]:
        """Change entries by a function of their name and record, as :meth:`edit` does; yield how
        many of a batch were changed, after each.

        *check* is called after each reading, so that what changes later is seen when it writes; it
        raises an error to end this.
        """
        for start in range(0, len(names), WRITE_BATCH):
            batch = names[start : start + WRITE_BATCH]
            changed = 0
            while batch:
                found = self._scan.values(self._pair[0], [to_bytes(name) for name in batch])
                there = [None if data is None else to_text(data) for data in found]
                check()
                writings = [edit(name, record) for name, record in zip(batch, there, strict=True)]
                some = [writing for writing in writings if writing is not None]
                written = self.write(some) if some else []
                changed += written.count("done")
                pairs = zip(some, written, strict=True)
                batch = [writing.name for writing, became in pairs if became == "changed"]
            yield changed

    def fire_call(self, queue: str, some: Sequence[EntryTicks]) -> Puts:
        """Return the call that schedules ticks which go to one queue; repeated it does nothing."""
        keys, layout = self._keys, self._runner.layout
        key = keys.queue(queue)
        call = Puts(
            "periodic/fire",
            [*key.state, keys.next_due, keys.queues, key.wake, *self._pair, keys.ticks],
            [queue, layout.text, keys.wake],
            lambda step: keys.ready(queue, step, layout),
            lists=(key.quarantined, *keys.ready_lists(queue, layout)),
        )
        for ticks in some:
            call.args += ticks.name, ticks.line, ticks.then, _ms(ticks.then_look)
            call.args += ticks.refused, _ms(ticks.refused_look), len(ticks.entries)
            for entry in ticks.entries:
                call.add(entry)
        return call

    def fire_in_all(self, ticks: EntryTicks, queues: Mapping[str, Sequence[Entry]]) -> str:
        """Schedule ticks of one entry that go to several queues each.

        A script knows one queue, so several are called in one transaction: all of them, or none
        when somebody was first. Ids do not do for that: they are forgotten when a task has ended,
        and one that comes late would store it anew.

        The first queue decides whether the unique key of the entry is free. In another one that is
        broken its ticks become dead letters: to try again would store them twice in the others.

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
        # A line that only this transaction knows: who was first may have written the same `then`.
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
        if codes != "-" and not {*codes} <= {"K", "E"}:
            for (queue, some), reply in zip(others, replies[1:-1], strict=True):
                if isinstance(reply, Exception):
                    self._dead_letter(queue, ticks.name, some, reply)
        return codes

    def _dead_letter(
        self, queue: str, name: str, entries: Sequence[Entry], error: Exception
    ) -> None:
        """Keep ticks that a broken queue has refused as its dead letters."""
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
        """Return the record of an entry."""
        found = cast("bytes | None", self._runner.client.hget(self._pair[0], to_bytes(name)))
        return None if found is None else to_text(found)

    def all(self) -> Iterator[tuple[str, str]]:
        """Yield name and record of every entry, in no order, perhaps some twice (HSCAN)."""
        for name, record in self._scan.fields(self._pair[0]):
            yield to_text(name), to_text(record)

    def count(self) -> int:
        """Return how many entries there are."""
        return cast(int, self._runner.client.hlen(self._pair[0]))

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
        """Announce a version of the entries in code: see
        ``periodic/announce_version.lua``.

        Parameters
        ----------
        then : WrittenEntries | None
            To store as the last written entries, if the mark is still *before*.
        """
        args: list[Any] = [source, version, _ms(since), alive_ms, to_bytes(before)]
        args += ["", ""] if then is None else [then.mark, json.dumps({**then.definition_hashes})]
        keys = [self._keys.code_versions]
        active, mark, own, *others = self._run("periodic/announce_version", keys, args)
        return ActiveVersion(
            to_text(active), to_text(mark), int(own), tuple(sorted(map(to_text, others)))
        )

    def written_entries(self, source: str) -> WrittenEntries:
        """Return the entries in code that were written last."""
        fields = [f"{source}\0", f"{source}\0\0"]
        mark, definition_hashes = self._runner.client.hmget(self._keys.code_versions, fields)
        try:
            found = foreign.loads(definition_hashes or b"{}")
        except ValueError:
            found = None
        return WrittenEntries(to_text(mark or b""), found if isinstance(found, dict) else {})


def fired(reply: Any) -> list[str]:
    """Return the codes of ``periodic/fire.lua`` of each entry."""
    return [each.decode() for each in reply]


def _ms(ms: int | None) -> int | str:
    return "" if ms is None else ms
