"""Reads large parts of the data in calls of about 1 MB, at least one message each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

from celery_delayq.model.envelope import MAX_DUE_MS, task_field
from celery_delayq.model.lookup import (
    PAUSED_OFFSET_MS,
    EntryCondition,
    ListedEntry,
    Name,
    Position,
    score_of,
    to_text,
)
from celery_delayq.store.scripting.calls import Call, Command, Steps
from celery_delayq.store.scripting.replies import cut, in_threes
from celery_delayq.store.scripting.runner import StorePart, ran

#: The hashes of messages that have left the schedule.
Index = Literal["waiting", "running"]

#: Most fields of a hash that one call reads, most values that it gets by their fields, most records
#: of entries: about 2 ms on a slow machine if they have 1 KB each.
PAGE_FIELDS = 100

#: Most messages of a list that one call reads: more, since each call walks to its place.
PAGE_MESSAGES = 150

#: Most entries that one call returns without their records.
PAGE_NAMES = 200

#: How long a reader may take for a page: as in ``include/pages/reading.lua``.
MAX_READING_MS = 3_600_000

#: Most entries that one call looks at to find some of a priority.
MAX_LOOKED_ENTRIES = 250


#: Scores without an end, and what is read instead.
_FINITE_SCORES = {b"-inf": b"%d" % -PAUSED_OFFSET_MS, b"+inf": b"%d" % (2 * PAUSED_OFFSET_MS)}


class Stretch(NamedTuple):
    """Entries of one queue that stand side by side, in the schedule or in the index by task.

    Attributes
    ----------
    ranges : tuple[tuple[bytes, bytes], ...]
        First and last score, or member, of each range, as Redis takes them.
    after, upto : Position | None
        Only entries behind the one, and not behind the other.
    began : int | None
        When the reading began, in µs since 1970 by Redis' clock: an entry that was moved since is
        where it was then. None: where it is.
    moved : tuple[str, int, int] | None
        The task, ``""`` for any, and the first and last due of entries that were moved; None for
        none of them.
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
        """Return the entries of a task, None for any, that are due then; of any priority.

        Those that are paused and due have scores of their own.
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
        """Return it without infinite scores, which somebody set manually: they are no times, and a
        page could not go on behind them.
        """
        ranges = tuple((_FINITE_SCORES.get(a, a), _FINITE_SCORES.get(b, b)) for a, b in self.ranges)
        return self._replace(ranges=ranges)

    def pieces(self) -> list[Stretch]:
        """Return a stretch for each of the ranges; the first one has what was moved."""
        first, *others = [self._replace(ranges=(each,)) for each in self.ranges]
        return [first, *(each._replace(moved=None) for each in others)]


class Part(NamedTuple):
    """Some entries, and where the rest begins, None at the end.

    Attributes
    ----------
    entries : list[tuple[bytes, bytes | None, bytes, bytes]]
        Name, record, score, and for one that was moved the due by which it is here. A record is
        None where it is missing or was not asked for.
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
    """The part of the gateway that reads large parts."""

    def sizes(self, pieces: Sequence[Stretch]) -> list[int]:
        """Return how many entries stand in each of some stretches of one range."""
        return answered(self._runner.run_all([self.size_command(each) for each in pieces]))

    def size_command(self, piece: Stretch) -> Command:
        """Return the command that counts the entries of a stretch of one range."""
        key, [(first, last)] = self._keys.queue(piece.queue), piece.ranges
        if piece.by_task:
            return Command.of("ZLEXCOUNT", key.tasks, first, last)
        return Command.of("ZCOUNT", key.due, first, last)

    def position(self, piece: Stretch, place: int) -> Position | None:
        """Return the entry at a place of a stretch of one range, from 0; None where there are fewer
        by now.
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
        """Return the first entries of a stretch: parameters of :meth:`part_call`."""
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

        One call reads at most :data:`PAGE_FIELDS` or :data:`PAGE_NAMES`, and with a priority
        *step* it looks at :data:`MAX_LOOKED_ENTRIES`. With *goes_on* the reading goes on after the
        end of this stretch.
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
        key = self._keys.queue(stretch.queue)
        return Call("scan/range", [*key.schedule, *key.moves], args)

    @staticmethod
    def read_part(reply: Sequence[Any]) -> Part:
        """Return what the reply to :meth:`part_call` says."""
        more, score, name, sizes, text, last_due = reply
        entries = []
        for id, record, scores in in_threes(cut(sizes, text)):
            at, _, was_due = scores.partition(b" ")
            entries.append((id, record, at, was_due))
        end = Position(score, name) if more == b"1" else None
        return Part(entries, end, int(last_due) if last_due else None)

    def entries(self, stretch: Stretch, limit: int) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
        """Yield name, record and score of all entries of a stretch, so many at a time."""
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
        """Note that several read the entries of some queues, from that time on (µs)."""
        calls: list[Call | Command] = []
        for queue in queues:
            name = self._keys.queue(queue).readers
            calls.append(Command.of("ZADD", name, began // 1000 + MAX_READING_MS, began))
            calls.append(Command.of("PEXPIRE", name, MAX_READING_MS))
        self._runner.run_all(calls)  # a refusal does not matter

    def died_ms(self, queue: str, low: int | None, place: int) -> int | None:
        """Return when the dead letter at a place died (ms), counted from 0 among the ones that died
        at *low* or later; None where there are fewer by now.
        """
        args = "-inf" if low is None else low, "+inf", place, 1
        name = self._keys.queue(queue).dead_at
        found = self._runner.client.zrangebyscore(name, *args, withscores=True)
        # The score may have been set manually.
        return int(max(0, min(found[0][1], MAX_DUE_MS))) if found else None

    # -- lists

    def lengths(self, lists: Sequence[str]) -> list[int]:
        """Return the lengths of lists."""
        return answered(self._runner.run_all([Command.of("LLEN", name) for name in lists]))

    def messages(
        self, name: str, start: int, end: int, limit: int, *, newest: bool = False
    ) -> Iterator[list[bytes]]:
        """Yield messages of a list, so many at a time: from place *start* to before *end*, counted
        from where they are taken out, or with *newest* from where they come in. So each that stays
        is there at least once, while others take some out.
        """
        longest = 0
        while start < end:
            first = start if newest else -start - 1
            call = self.messages_call(name, first, min(limit, PAGE_MESSAGES, end - start), longest)
            found = cut(*self._runner.run(call))
            if not found:
                return
            yield found
            longest = max(map(len, found))
            start += len(found)

    @staticmethod
    def messages_call(name: str, first: int, limit: int, longest: int = 0) -> Call:
        """Return the call that reads messages of a list from an index on: arguments of
        ``scan/list_range``.
        """
        return Call("scan/list_range", [name], [first, limit, longest])

    # -- hashes

    def fields(self, name: str | bytes, page: int = PAGE_FIELDS) -> Iterator[tuple[bytes, bytes]]:
        """Yield all fields of a hash with their values, in no order, perhaps some twice (HSCAN).

        Fields that come or go meanwhile may be missing.
        """
        cursor = b"0"
        while True:
            cursor, *reply = self._run("scan/hash_scan", [name], [cursor, page])
            found = cut(*reply)
            yield from zip(found[::2], found[1::2], strict=True)
            if cursor == b"0":
                return

    def values_steps(self, name: str, fields: Sequence[bytes]) -> Steps[list[bytes | None]]:
        """Return the values of fields of a hash, None for missing ones."""
        found: list[bytes | None] = []
        while len(found) < len(fields):
            page = fields[len(found) : len(found) + PAGE_FIELDS]
            found += cut(*(yield Call("scan/hash_values", [name], [*page])))
        return found

    values = ran(values_steps)

    # -- leased messages

    def leased(self, queue: str, worker_id: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield field and value of each message that is leased to a process, each once."""
        name = self._keys.queue(queue).leased(worker_id)
        seen: set[bytes] = set()  # at most its prefetch
        for field, value in self.fields(name):
            if field not in seen:
                seen.add(field)
                yield field, value

    def tracked(self, queue: str, index: Index, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of names in the ready or the leased index."""
        key = self._keys.queue(queue)
        name = key.ready_index if index == "waiting" else key.leased_index
        return cast("list[bytes | None]", self._runner.client.hmget(name, names) if names else [])


def answered(replies: list[Any]) -> list[Any]:
    """Return replies; raises the first refusal among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _is_paused(first: bytes) -> bool:
    """Return whether a range that begins with that score is of entries that are paused and due."""
    return not first.startswith(b"-") and float(first) >= PAUSED_OFFSET_MS
