"""Reads large parts of the data. Each call reads about 1 MB, and at least one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

from celery_delayq.model.envelope import MAX_DUE_MS, task_field
from celery_delayq.model.script_values import (
    PAUSED_OFFSET_MS,
    EntryCondition,
    ListedEntry,
    Name,
    Position,
    score_of,
    to_text,
)
from celery_delayq.store.scripting.calls import Call, Command, Steps
from celery_delayq.store.scripting.replies import answered, cut, in_threes
from celery_delayq.store.scripting.runner import StorePart, ran

#: The index of ready messages, and the index of leased messages.
Index = Literal["waiting", "running"]

#: Most fields or values of a hash, or records of entries, that one call reads. With 1 KB for each,
#: a call takes about 2 ms on a slow machine.
PAGE_FIELDS = 100

#: Most messages of a list that one call reads. More than for hashes, since each call first walks to
#: its position in the list.
PAGE_MESSAGES = 150

#: Most entries that one call returns without records.
PAGE_NAMES = 200

#: Most ms that a reader may take for a page, as in ``include/pages/reading.lua``.
MAX_READING_MS = 3_600_000

#: Most entries that one call looks at to find entries of a priority.
MAX_LOOKED_ENTRIES = 250


#: Infinite scores, and the finite scores that replace them.
_FINITE_SCORES = {b"-inf": b"%d" % -PAUSED_OFFSET_MS, b"+inf": b"%d" % (2 * PAUSED_OFFSET_MS)}


class Stretch(NamedTuple):
    """Contiguous entries of one queue, in the schedule or in the index by task.

    Attributes
    ----------
    ranges : tuple[tuple[bytes, bytes], ...]
        First and last score, or member, of each range, in Redis' notation.
    after, upto : Position | None
        Only entries after *after*, up to *upto*.
    began : int | None
        The time at which the reading began, in µs since 1970 by Redis' clock. Entries that were
        moved later are read at their former position. None: at their current position.
    moved : tuple[str, int, int] | None
        The moved entries to read: their task, ``""`` for any, and their first and last due; None
        for no moved entries.
    """

    queue: str
    by_task: bool
    ranges: tuple[tuple[bytes, bytes], ...]
    after: Position | None = None
    upto: Position | None = None
    began: int | None = None
    moved: tuple[str, int, int] | None = None

    @classmethod
    def of(cls, queue: str, where: EntryCondition, began: int | None = None) -> Stretch:
        """Return the stretch of the entries that match *where*, of any priority.

        Paused and due entries have a range of their own, since their scores have an offset.
        """
        task, low, high, _ = where
        first_due = -PAUSED_OFFSET_MS if low is None else low
        last_due = PAUSED_OFFSET_MS - 1 if high is None else min(high, PAUSED_OFFSET_MS - 1)
        moved = ("" if task is None else task_field(task), first_due, last_due)
        if task is not None:
            field = task_field(task)
            start = f"[{field}\0" if low is None else f"[{field}\0{max(low, 0):015d}"
            end = f"({field}\1" if high is None else f"({field}\0{high + 1:015d}"
            ranges: tuple[tuple[bytes, bytes], ...] = ((start.encode(), end.encode()),)
            return cls(queue, True, ranges, began=began, moved=moved)
        first = b"-inf" if low is None else b"%d" % low
        last = PAUSED_OFFSET_MS - 1 if high is None else high
        first_paused = PAUSED_OFFSET_MS + max(low or 0, 0)
        last_paused = b"+inf" if high is None else b"%d" % (PAUSED_OFFSET_MS + high)
        ranges = ((first, b"%d" % last), (b"%d" % first_paused, last_paused))
        return cls(queue, False, ranges, began=began, moved=moved)

    def finite(self) -> Stretch:
        """Return the stretch without infinite scores, which other code may have set: a page cannot
        continue after an infinite score.
        """
        ranges = tuple((_FINITE_SCORES.get(a, a), _FINITE_SCORES.get(b, b)) for a, b in self.ranges)
        return self._replace(ranges=ranges)

    def pieces(self) -> list[Stretch]:
        """Return a stretch for each range. The first one has the moved entries."""
        first, *others = [self._replace(ranges=(each,)) for each in self.ranges]
        return [first, *(each._replace(moved=None) for each in others)]


class Part(NamedTuple):
    """Some entries of a stretch.

    Attributes
    ----------
    entries : list[tuple[bytes, bytes | None, bytes, bytes]]
        Name, record, score and, for a moved entry, its former due. A record is None if it is
        missing or was not requested.
    end : Position | None
        The position after which the next part begins; None at the end.
    last_due : int | None
        The highest due in the stretch (ms), on the first page of a reading.
    """

    entries: list[tuple[bytes, bytes | None, bytes, bytes]]
    end: Position | None
    last_due: int | None = None

    def listed(self) -> list[ListedEntry]:
        """Return the entries."""
        return [
            ListedEntry(
                name=Name(to_text(name)),
                score=score_of(score),
                record=record or b"",
                was_due=score_of(was_due) if was_due else None,
            )
            for name, record, score, was_due in self.entries
        ]


class ScanStore(StorePart):
    """The part of the store that reads large parts of the data."""

    def sizes(self, pieces: Sequence[Stretch]) -> list[int]:
        """Return the number of entries in each of some stretches with one range."""
        return answered(self._runner.run_all([self.size_command(each) for each in pieces]))

    def size_command(self, piece: Stretch) -> Command:
        """Return the command that counts the entries of a stretch with one range."""
        key, [(first, last)] = self._keys.queue(piece.queue), piece.ranges
        if piece.by_task:
            return Command.of("ZLEXCOUNT", key.tasks, first, last)
        return Command.of("ZCOUNT", key.due, first, last)

    def position(self, piece: Stretch, place: int) -> Position | None:
        """Return the position of an entry in a stretch with one range; None if there are fewer.

        *place* is the entry's index, from 0.
        """
        key, client = self._keys.queue(piece.queue), self._runner.client
        [(first, last)] = piece.ranges
        if piece.by_task:
            head = client.zrangebylex(key.tasks, first, last, 0, 1)
            rank = client.zrank(key.tasks, head[0]) if head else None
            found = [] if rank is None else client.zrange(key.tasks, rank + place, rank + place)
            return Position(b"", found[0]) if found else None
        before = 0 if first == b"-inf" else cast(int, client.zcount(key.due, "-inf", b"(" + first))
        pairs = client.zrange(key.due, before + place, before + place, withscores=True)
        if not pairs:
            return None
        due = pairs[0][1] - (PAUSED_OFFSET_MS if _is_paused(first) else 0)
        return Position(repr(due).encode(), pairs[0][0])

    def part(self, *args: Any, **options: Any) -> Part:
        """Return the first entries of a stretch. Parameters of :meth:`part_call`."""
        return self.read_part(self._runner.run(self.part_call(*args, **options)))

    def part_call(
        self,
        stretch: Stretch,
        limit: int,
        *,
        step: int | None = None,
        records: bool = True,
        goes_on: bool = False,
    ) -> Call:
        """Return the call that reads the first entries of a stretch.

        One call reads at most :data:`PAGE_FIELDS` entries with records, or :data:`PAGE_NAMES`
        without. With a priority *step* it looks at :data:`MAX_LOOKED_ENTRIES`. *goes_on*: the
        reading continues after the end of this stretch.
        """
        limit = min(limit, PAGE_FIELDS if records else PAGE_NAMES)
        args = [
            int(stretch.by_task),
            *(stretch.after or (b"", b"")),
            *(stretch.upto or (b"", b"")),
            limit,
            limit if step is None else MAX_LOOKED_ENTRIES,
            "" if step is None else step,
            int(records),
            "" if stretch.began is None else stretch.began,
            int(goes_on),
            *(stretch.moved or ("", "", "")),
            *chain.from_iterable(stretch.ranges),
        ]
        return self._new_call("scan/range", stretch.queue, args)

    @staticmethod
    def read_part(reply: Sequence[Any]) -> Part:
        """Read the reply to :meth:`part_call`."""
        more, score, name, sizes, text, last_due = reply
        entries = []
        for id, record, scores in in_threes(cut(sizes, text)):
            at, _, was_due = scores.partition(b" ")
            entries.append((id, record, at, was_due))
        end = Position(score, name) if more == b"1" else None
        return Part(entries, end, int(last_due) if last_due else None)

    def entries(self, stretch: Stretch, limit: int) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
        """Yield name, record and score of all entries of a stretch, up to *limit* at a time."""
        end: Position | None = stretch.after
        while True:
            part = self.part(stretch._replace(after=end), limit, goes_on=True)
            found = [
                (name, data, score) for name, data, score, _ in part.entries if data is not None
            ]
            if found:
                yield found
            end = part.end
            if end is None:
                return

    def note_reading(self, queues: Iterable[str], began: int) -> None:
        """Note in Redis that a reading of the entries of some queues began at *began* (µs)."""
        calls: list[Call | Command] = []
        for queue in queues:
            name = self._keys.queue(queue).readers
            calls.append(Command.of("ZADD", name, began // 1000 + MAX_READING_MS, began))
            calls.append(Command.of("PEXPIRE", name, MAX_READING_MS))
        self._runner.run_all(calls)  # refusals are ignored

    def died_ms(self, queue: str, low: int | None, place: int) -> int | None:
        """Return the time of death (ms) of a dead letter; None if there are fewer dead letters.

        *place* is its index, from 0, among the dead letters that died at *low* or later.
        """
        args = "-inf" if low is None else low, "+inf", place, 1
        name = self._keys.queue(queue).dead_at
        found = self._runner.client.zrangebyscore(name, *args, withscores=True)
        # Other code may have set the score.
        return int(max(0, min(found[0][1], MAX_DUE_MS))) if found else None

    # -- lists

    def lengths(self, lists: Sequence[str]) -> list[int]:
        """Return the lengths of lists."""
        return answered(self._runner.run_all([Command.of("LLEN", name) for name in lists]))

    def messages(
        self,
        name: str,
        start: int,
        end: int,
        limit: int,
        *,
        newest: bool = False,
        run: Callable[[Call], Any] | None = None,
    ) -> Iterator[list[bytes]]:
        """Yield messages of a list, up to *limit* at a time.

        The messages are those from index *start* to before *end*. Indexes begin at the oldest
        message or, with *newest*, at the newest. With *newest*, each message that stays in the list
        comes at least once, although workers take others meanwhile.

        Parameters
        ----------
        run : Callable[[Call], Any] | None
            Makes a call; None for the connection of this store.
        """
        run = run or self._runner.run
        longest = 0
        while start < end:
            first = start if newest else -start - 1
            call = self.messages_call(name, first, min(limit, PAGE_MESSAGES, end - start), longest)
            found = cut(*run(call))
            if not found:
                return
            yield found
            longest = max(map(len, found))
            start += len(found)

    @staticmethod
    def messages_call(name: str, first: int, limit: int, longest: int = 0) -> Call:
        """Return the call that reads messages of a list from an index on. Parameters of
        ``scan/list_range``.
        """
        return Call("scan/list_range", [name], [first, limit, longest])

    # -- hashes

    def fields(self, name: str | bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield all fields of a hash with their values, unordered; some may come twice (HSCAN).

        Fields that are added or removed meanwhile may be missing.
        """
        cursor = b"0"
        while True:
            cursor, *reply = self._run("scan/hash_scan", None, [cursor, PAGE_FIELDS], hash=name)
            found = cut(*reply)
            yield from zip(found[::2], found[1::2], strict=True)
            if cursor == b"0":
                return

    def values_steps(self, name: str, fields: Sequence[bytes]) -> Steps[list[bytes | None]]:
        """Return the values of fields of a hash; None for a missing field."""
        found: list[bytes | None] = []
        while len(found) < len(fields):
            page = fields[len(found) : len(found) + PAGE_FIELDS]
            found += cut(*(yield self._new_call("scan/hash_values", None, page, hash=name)))
        return found

    values = ran(values_steps)

    # -- leased messages

    def leased(self, queue: str, worker_id: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield field and value of each message that is leased to a process, each once."""
        name = self._keys.queue(queue).leased(worker_id)
        seen: set[bytes] = set()  # at most the prefetch of the process
        for field, value in self.fields(name):
            if field not in seen:
                seen.add(field)
                yield field, value

    def tracked(self, queue: str, index: Index, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of *names* in the ready or leased index; None for a missing name."""
        key = self._keys.queue(queue)
        name = key.ready_index if index == "waiting" else key.leased_index
        return cast("list[bytes | None]", self._runner.client.hmget(name, names) if names else [])


def _is_paused(first: bytes) -> bool:
    """Return whether a range that begins at a score is the range of paused and due entries."""
    return not first.startswith(b"-") and float(first) >= PAUSED_OFFSET_MS
