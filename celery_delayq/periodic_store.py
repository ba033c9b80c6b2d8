"""The gateway to periodic entries in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from celery_delayq import scripts
from celery_delayq.calls import Call, Puts
from celery_delayq.message import Entry

if TYPE_CHECKING:
    from celery_delayq.store import Store

Written = Literal["done", "changed", "unknown"]

_WRITTEN: dict[str, Written] = {"d": "done", "c": "changed", "u": "unknown"}


#: Most entries that one call writes.
BATCH = 100


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
    """

    now: int
    next: int | None
    records: list[tuple[str, str]]


class Writing(NamedTuple):
    """How an entry is to be.

    Attributes
    ----------
    line : str
        The line in which it is to stand before, ``""`` when there is to be none.
    record : str
        ``""`` to remove it.
    look : int | None
        When to look at it (ms), None for never.
    """

    name: str
    line: str
    record: str
    look: int | None = None


class Shot(NamedTuple):
    """Ticks of one entry that go to one queue; see ``lua/fire.lua`` for what each means."""

    name: str
    line: str
    then: str
    then_look: int | None
    refused: str
    refused_look: int | None
    entries: Sequence[Entry]


class Deploy(NamedTuple):
    """Which version of the entries in code counts, and which was written last."""

    counts: str
    written: str
    since: int


class PeriodicStore:
    """What is done with periodic entries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = [store.keys.periodic, store.keys.periodic_at]

    def upcoming(self, limit: int, leave_ms: int) -> Upcoming:
        """Return entries to look at, which others leave alone for so many ms."""
        reply = self._store.run(Call(scripts.load("upcoming"), self._keys, [limit, leave_ms]))
        now, following, *rest = reply
        texts = [_text(each) for each in rest]
        return Upcoming(
            int(now),
            int(float(following)) if following else None,
            list(zip(texts[::2], texts[1::2], strict=True)),
        )

    def write(self, writings: Sequence[Writing]) -> list[Written]:
        """Write entries, each only if it stands as it is to stand before."""
        args: list[Any] = [
            field
            for name, line, record, look in writings
            for field in (_bytes(name), _bytes(line), _bytes(record), _ms(look))
        ]
        args.insert(0, self._store.keys.periodic_wake)
        reply = self._store.run(Call(scripts.load("enter"), list(self._keys), args))
        return [_WRITTEN[letter] for letter in reply.decode()]

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
        self, names: Sequence[str], edit: Callable[[str, str | None], Writing | None]
    ) -> Iterator[int]:
        """Change entries by a function of their name and record, as :meth:`edit` does; yield how
        many of a batch were changed, after each.
        """
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            changed = 0
            while batch:
                found = self._store.client.hmget(self._keys[0], [_bytes(name) for name in batch])
                there = [None if data is None else _text(data) for data in found]
                writings = [edit(name, record) for name, record in zip(batch, there, strict=True)]
                some = [writing for writing in writings if writing is not None]
                written = self.write(some) if some else []
                changed += written.count("done")
                pairs = zip(some, written, strict=True)
                batch = [writing.name for writing, became in pairs if became == "changed"]
            yield changed

    def fire(self, queue: str, shots: Sequence[Shot]) -> list[str]:
        """Schedule ticks that go to one queue; returns the letters of ``lua/fire.lua``."""
        return fired(self._store.run(self.fire_call(queue, shots)))

    def fire_call(self, queue: str, shots: Sequence[Shot]) -> Call:
        """Return the call that schedules ticks which go to one queue; repeated it does nothing."""
        call = self._store.puts(queue, limited=False)
        # Before the ready lists, which come as they are needed.
        call.script, args = scripts.load("fire"), call.args[:3]
        call.keys += self._keys
        puts = Puts(call.script, call.keys, [], call.ready, lists=call.lists)
        for shot in shots:
            puts.args += (
                shot.name,
                shot.line,
                shot.then,
                _ms(shot.then_look),
                shot.refused,
                _ms(shot.refused_look),
                len(shot.entries),
            )
            for entry in shot.entries:
                puts.add(entry)
        puts.args[:0] = args
        return puts

    def get(self, name: str) -> str | None:
        """Return the record of an entry."""
        found = cast("bytes | None", self._store.client.hget(self._keys[0], _bytes(name)))
        return None if found is None else _text(found)

    def all(self, page: int = 500) -> Iterator[tuple[str, str]]:
        """Yield name and record of every entry, in no order, perhaps some twice (HSCAN)."""
        for name, record in self._store.client.hscan_iter(self._keys[0], count=page):
            yield _text(name), _text(record)

    def count(self) -> int:
        """Return how many entries there are."""
        return cast(int, self._store.client.hlen(self._keys[0]))

    def deploy(
        self,
        source: str,
        version: str,
        since: int | None,
        alive_ms: int,
        *,
        written: bool | None = None,
    ) -> Deploy:
        """Note that a version of the entries in code is about: see ``lua/deploy.lua``.

        Parameters
        ----------
        written : bool | None
            Whether its entries are written now; False when somebody has to write those that count
            again.
        """
        args = [source, version, _ms(since), alive_ms, "" if written is None else int(written)]
        keys = [self._store.keys.deploys]
        counts, last, own = self._store.run(Call(scripts.load("deploy"), keys, args))
        return Deploy(counts.decode(), last.decode(), int(own))


def fired(reply: Any) -> list[str]:
    """Return the letters of ``lua/fire.lua`` of each entry."""
    return [each.decode() for each in reply]


def _ms(ms: int | None) -> int | str:
    return "" if ms is None else ms


def _text(data: bytes) -> str:
    """Return a name or a record, which may be anything: another program may have written it."""
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
