"""Reads large parts of the data in calls of about 1 MB, at least one message each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, cast

from celery_delayq.model.envelope import MAX_DUE_MS, task_field
from celery_delayq.model.lookup import PAUSED_OFFSET
from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.runner import ScriptRunner

Where = Literal["waiting", "running"]

#: Most fields of a hash that one call reads, if they are small.
PAGE = 500

#: Most fields of a hash that one call gets the values of.
VALUES = 200


class Mark(NamedTuple):
    """A place in the schedule, as Redis spells it: score and name of an entry, or ``b""`` and a
    member of the index by task.
    """

    score: bytes
    name: bytes

    @property
    def key(self) -> tuple[float, bytes]:
        """What tells which of two is behind the other."""
        return float(self.score or 0), self.name


class Stretch(NamedTuple):
    """Entries of one queue that stand side by side, in the schedule or in the index by task.

    Attributes
    ----------
    first, last : bytes
        The range of scores or members, as Redis takes it.
    after, upto : Mark | None
        Only what stands behind the one, and not behind the other.
    """

    queue: str
    by_task: bool
    first: bytes
    last: bytes
    after: Mark | None = None
    upto: Mark | None = None

    @classmethod
    def all_of(
        cls, queue: str, task: str | None, low: int | None, high: int | None
    ) -> list[Stretch]:
        """Return the stretches of all entries of a task, None for any, due then (ms, inclusive).

        What is paused stands behind all others, with a due of its own.
        """
        if task is not None:
            field = task_field(task)
            start = f"[{field}\0" if low is None else f"[{field}\0{max(low, 0):015d}"
            end = f"({field}\1" if high is None else f"({field}\0{high + 1:015d}"
            return [cls(queue, True, start.encode(), end.encode())]
        if low is None and high is None:
            return [cls(queue, False, b"-inf", b"+inf")]
        first, last = (
            b"-inf" if low is None else b"%d" % low,
            PAUSED_OFFSET - 1 if high is None else high,
        )
        paused_due = (
            PAUSED_OFFSET + max(low or 0, 0),
            b"+inf" if high is None else b"%d" % (PAUSED_OFFSET + high),
        )
        return [
            cls(queue, False, first, b"%d" % last),
            cls(queue, False, b"%d" % paused_due[0], paused_due[1]),
        ]


class Part(NamedTuple):
    """Some entries: name, score and record of each, and where to go on, None at the end."""

    entries: list[tuple[bytes, bytes, bytes]]
    next: Mark | None


class ScanStore:
    """The part of the gateway that reads large parts."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner
        self._keys = runner.keys

    def sizes(self, stretches: Sequence[Stretch]) -> list[int]:
        """Return how many entries stand in each."""
        with self._runner.client.pipeline(transaction=False) as pipe:
            for each in stretches:
                key = self._keys.queue(each.queue)
                if each.by_task:
                    pipe.zlexcount(key.tasks, each.first, each.last)
                else:
                    pipe.zcount(key.due, each.first, each.last)
            return cast("list[int]", pipe.execute())

    def mark(self, stretch: Stretch, place: int) -> Mark | None:
        """Return the entry at a place of a stretch, from 0; None where there are fewer by now."""
        key, client = self._keys.queue(stretch.queue), self._runner.client
        if stretch.by_task:
            head = client.zrangebylex(key.tasks, stretch.first, stretch.last, 0, 1)
            rank = client.zrank(key.tasks, head[0]) if head else None
            found = [] if rank is None else client.zrange(key.tasks, rank + place, rank + place)
            return Mark(b"", found[0]) if found else None
        before = 0
        if stretch.first != b"-inf":
            before = cast(int, client.zcount(key.due, "-inf", b"(" + stretch.first))
        pairs = client.zrange(key.due, before + place, before + place, withscores=True)
        return Mark(repr(pairs[0][1]).encode(), pairs[0][0]) if pairs else None

    def part(self, stretch: Stretch, limit: int) -> Part:
        """Return the first entries of a stretch."""
        key = self._keys.queue(stretch.queue)
        first, last, after, upto = stretch.first, stretch.last, b"", b""
        names = [b"", b""]
        if stretch.by_task:
            first = first if stretch.after is None else b"(" + stretch.after.name
            last = last if stretch.upto is None else b"[" + stretch.upto.name
        else:
            if stretch.after is not None:
                after, names[0] = stretch.after
            if stretch.upto is not None:
                upto, names[1] = stretch.upto
        args = ["1" if stretch.by_task else "0", first, last, after, names[0], upto, names[1]]
        call = Call(scripts.load("scan/range"), [*key.schedule], [*args, limit])
        more, score, name, sizes, text = self._runner.run(call)
        entries, start = [], 0
        numbers = iter(sizes.split())
        for name_size, size, its_score in zip(numbers, numbers, numbers, strict=True):
            begin = start + int(name_size)
            end = begin + int(size)
            entries.append((text[start:begin], its_score, text[begin:end]))
            start = end
        return Part(entries, Mark(score, name) if more == b"1" else None)

    def entries(self, stretch: Stretch, limit: int) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
        """Yield all entries of a stretch, name, score and record, so many at a time."""
        going: Stretch | None = stretch
        while going is not None:
            found, following = self.part(going, limit)
            if found:
                yield found
            going = None if following is None else going._replace(after=following)

    def died_ms(self, queue: str, low: int | None, place: int) -> int | None:
        """Return when the dead letter at a place died, from 0, of those that died at *low* or later
        (ms); None where there are fewer by now.
        """
        args = "-inf" if low is None else low, "+inf", place, 1
        name = self._keys.queue(queue).dead_at
        found = self._runner.client.zrangebyscore(name, *args, withscores=True)
        # A hand may have written any score.
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
        while start < end:
            first = start if newest else -start - 1
            call = Call(scripts.load("scan/list_range"), [name], [first, min(limit, end - start)])
            found = _cut(*self._runner.run(call))
            if not found:
                return
            yield found
            start += len(found)

    # -- hashes

    def fields(self, name: str, page: int = PAGE) -> Iterator[tuple[bytes, bytes]]:
        """Yield all fields of a hash with their values, in no order, perhaps some twice (HSCAN).

        Fields that come or go meanwhile may be missing.
        """
        cursor = b"0"
        while True:
            call = Call(scripts.load("scan/hash_scan"), [name], [cursor, page])
            cursor, *reply = self._runner.run(call)
            found = _cut(*reply)
            yield from zip(found[::2], found[1::2], strict=True)
            if cursor == b"0":
                return

    def values(self, name: str, fields: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of fields of a hash, None for missing ones."""
        found: list[bytes | None] = []
        while len(found) < len(fields):
            asked = fields[len(found) : len(found) + VALUES]
            sizes, text = self._runner.run(Call(scripts.load("scan/hash_values"), [name], [*asked]))
            begin = 0
            for each in map(int, sizes.split()):
                found.append(None if each < 0 else text[begin : begin + each])
                begin += max(each, 0)
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

    def tracked(self, queue: str, where: Where, names: Sequence[bytes]) -> list[bytes | None]:
        """Return what is tracked under names of messages that are ready, or held."""
        key = self._keys.queue(queue)
        name = key.waiting if where == "waiting" else key.running
        return cast("list[bytes | None]", self._runner.client.hmget(name, names) if names else [])


def _cut(sizes: bytes, text: bytes) -> list[bytes]:
    """Split joined parts by their sizes."""
    found, begin = [], 0
    for size in map(int, sizes.split()):
        found.append(text[begin : begin + size])
        begin += size
    return found
