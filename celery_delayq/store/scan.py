"""Reads large parts of the data in calls of about 1 MB, at least one message each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple, cast

from celery_delayq.model.envelope import MAX_DUE_MS, task_field
from celery_delayq.model.lookup import PAUSED_OFFSET, Position, Where
from celery_delayq.store.scripting.replies import cut, in_threes
from celery_delayq.store.scripting.runner import StorePart

#: The hashes of messages that have left the schedule.
Index = Literal["waiting", "running"]

#: Most fields of a hash that one call reads, most values that it gets by their fields, most records
#: of entries: about 2 ms on a slow machine if they have 1 KB each.
PAGE = 100

#: Most messages of a list that one call reads: more, since each call walks to its place.
MESSAGES = 150

#: Most entries that one call returns without their records.
NAMES = 200

#: Most entries that one call looks at to find some of a priority.
LOOKS = 250


class Stretch(NamedTuple):
    """Entries of one queue that stand side by side, in the schedule or in the index by task.

    Attributes
    ----------
    ranges : tuple[tuple[bytes, bytes], ...]
        First and last score, or member, of each range, as Redis takes them.
    after, upto : Position | None
        Only entries behind the one, and not behind the other.
    """

    queue: str
    by_task: bool
    ranges: tuple[tuple[bytes, bytes], ...]
    after: Position | None = None
    upto: Position | None = None

    @classmethod
    def of(cls, queue: str, where: Where) -> Stretch:
        """Return the entries of a task, None for any, that are due then; of any priority.

        Those that are paused and due stand behind all others, with scores of their own.
        """
        task, low, high, _ = where
        if task is not None:
            field = task_field(task)
            start = f"[{field}\0" if low is None else f"[{field}\0{max(low, 0):015d}"
            end = f"({field}\1" if high is None else f"({field}\0{high + 1:015d}"
            return cls(queue, True, ((start.encode(), end.encode()),))
        if low is None and high is None:
            return cls(queue, False, ((b"-inf", b"+inf"),))
        first = b"-inf" if low is None else b"%d" % low
        last = PAUSED_OFFSET - 1 if high is None else high
        first_paused = PAUSED_OFFSET + max(low or 0, 0)
        last_paused = b"+inf" if high is None else b"%d" % (PAUSED_OFFSET + high)
        ranges = ((first, b"%d" % last), (b"%d" % first_paused, last_paused))
        return cls(queue, False, ranges)

    def pieces(self) -> list[Stretch]:
        """Return a stretch for each of the ranges."""
        return [self._replace(ranges=(each,)) for each in self.ranges]


class Part(NamedTuple):
    """Name, record and score of some entries, and where the rest begins, None at the end.

    A record is None where it is missing or was not asked for.
    """

    entries: list[tuple[bytes, bytes | None, bytes]]
    end: Position | None


class ScanStore(StorePart):
    """The part of the gateway that reads large parts."""

    def sizes(self, pieces: Sequence[Stretch]) -> list[int]:
        """Return how many entries stand in each of some stretches of one range."""
        with self._runner.client.pipeline(transaction=False) as pipe:
            for each in pieces:
                key, [(first, last)] = self._keys.queue(each.queue), each.ranges
                if each.by_task:
                    pipe.zlexcount(key.tasks, first, last)
                else:
                    pipe.zcount(key.due, first, last)
            return cast("list[int]", pipe.execute())

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
        return Position(repr(pairs[0][1]).encode(), pairs[0][0]) if pairs else None

    def part(
        self, stretch: Stretch, limit: int, *, step: int | None = None, records: bool = True
    ) -> Part:
        """Return the first entries of a stretch.

        One call reads at most :data:`PAGE` or :data:`NAMES`, and with a priority *step* it looks at
        :data:`LOOKS`.
        """
        limit = min(limit, PAGE if records else NAMES)
        args = [
            int(stretch.by_task),
            *(stretch.after or (b"", b"")),
            *(stretch.upto or (b"", b"")),
            limit,
            limit if step is None else LOOKS,
            "" if step is None else step,
            int(records),
            *chain.from_iterable(stretch.ranges),
        ]
        keys = [*self._keys.queue(stretch.queue).schedule]
        more, score, name, sizes, text = self._run("scan/range", keys, args)
        end = Position(score, name) if more == b"1" else None
        return Part([*in_threes(cut(sizes, text))], end)

    def entries(self, stretch: Stretch, limit: int) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
        """Yield name, record and score of all entries of a stretch, so many at a time."""
        end: Position | None = stretch.after
        while True:
            found, end = self.part(stretch._replace(after=end), limit)
            if entries := [(name, data, score) for name, data, score in found if data is not None]:
                yield entries
            if end is None:
                return

    def died_ms(self, queue: str, low: int | None, place: int) -> int | None:
        """Return when the dead letter at a place died (ms), counted from 0 among the ones that died
        at *low* or later; None where there are fewer by now.
        """
        args = "-inf" if low is None else low, "+inf", place, 1
        name = self._keys.queue(queue).dead_at
        found = self._runner.client.zrangebyscore(name, *args, withscores=True)
        # The score may have been set manually.
        return int(max(0, min(found[0][1], MAX_DUE_MS))) if found else None

    def runs(self) -> int:
        """Return how many runs the history has."""
        return cast(int, self._runner.client.xlen(self._keys.history))

    # -- lists

    def lengths(self, lists: Sequence[str]) -> list[int]:
        """Return the lengths of lists."""
        with self._runner.client.pipeline(transaction=False) as pipe:
            for name in lists:
                pipe.llen(name)
            return cast("list[int]", pipe.execute())

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
            args = [first, min(limit, MESSAGES, end - start), longest]
            found = cut(*self._run("scan/list_range", [name], args))
            if not found:
                return
            yield found
            longest = max(map(len, found))
            start += len(found)

    # -- hashes

    def fields(self, name: str, page: int = PAGE) -> Iterator[tuple[bytes, bytes]]:
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

    def values(self, name: str, fields: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of fields of a hash, None for missing ones."""
        found: list[bytes | None] = []
        while len(found) < len(fields):
            asked = fields[len(found) : len(found) + PAGE]
            found += cut(*self._run("scan/hash_values", [name], [*asked]))
        return found

    # -- what processes hold

    def held(self, queue: str, worker_id: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield field and value of each message that a process holds, each once."""
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
