"""Dead letters in Redis: add, read, replay, delete, trim, restore."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from hashlib import sha1
from itertools import chain, repeat
from typing import Any, NamedTuple, cast
from uuid import uuid4

from celery_delayq.model.dead_letter import CRASH_REASONS, DeadLetterRecord
from celery_delayq.model.envelope import Entry, dead_letter_text
from celery_delayq.model.script_values import StatusCode, Swap, to_bytes, to_text
from celery_delayq.model.totals import kind_of
from celery_delayq.store.keys import Layout
from celery_delayq.store.scan import ScanStore
from celery_delayq.store.scripting.calls import Call, Command, EntriesCall, Steps
from celery_delayq.store.scripting.clock import clock_us, time_command
from celery_delayq.store.scripting.pipelining import Ask, PipelinedCalls
from celery_delayq.store.scripting.replies import cut, in_threes, members_with_scores
from celery_delayq.store.scripting.runner import StorePart, ran
from celery_delayq.utils.portions import portions

logger = logging.getLogger(__name__)

#: Most dead letters that one call reads. Large dead letters end a page earlier.
PAGE_DEAD_LETTERS = 100

#: Most dead letters that one call makes ready again without reading their messages.
REPLAY_BATCH = 75

#: Most dead letters that one call swaps.
SWAP_BATCH = 40

#: Most dead letters that one call deletes, and whose messages it looks at.
PURGE_BATCH = 100

#: Most dead letters that one call deletes, and most such calls in a row.
TRIM_BATCH, MAX_TRIM_CALLS = 200, 10


class Replay(NamedTuple):
    """A dead letter, and the entry that replaces it.

    Attributes
    ----------
    id : str
        The id of the dead letter.
    died_ms : int
        Its time of death, in ms since 1970; 0 for any.
    entry : Entry
        The entry that replaces it.
    digest : str
        The :func:`digest_of` of the stored bytes from which the entry was made.
    """

    id: str
    died_ms: int
    entry: Entry
    digest: str


class ChangedInPlace(NamedTuple):
    """The reply of ``deadletters/replay_in_place.lua`` and ``deadletters/purge_in_place.lua``.

    Attributes
    ----------
    number : int
        Number of dead letters that the script has changed.
    unread : list[tuple[bytes, float]]
        Id and time of death (ms) of dead letters whose messages must be read.
    last_died : float
        Time of death (ms) of the last dead letter that was looked at.
    has_more : bool
        Whether there are more dead letters.
    """

    number: int
    unread: list[tuple[bytes, float]]
    last_died: float
    has_more: bool

    @classmethod
    def read(cls, reply: bytes) -> ChangedInPlace:
        """Read the reply."""
        head, _, ids = reply.partition(b"\n")
        more, last_died, number, *unread = head.split()
        names = cut(b" ".join(unread[::2]), ids)
        found = [*zip(names, map(float, unread[1::2]), strict=True)]
        return cls(int(number), found, float(last_died), more == b"1")


class DeadLetterExtent(NamedTuple):
    """The extent of the dead letters of a queue that died between two times.

    Attributes
    ----------
    number : int
        Their number.
    first : float
        The first time of a death, in ms since 1970; infinite without one.
    last_ms : int | None
        The latest possible time of their deaths, in ms: all later dead letters die after it. None
        without one.
    """

    number: int
    first: float
    last_ms: int | None


def digest_of(data: bytes) -> str:
    """Return the digest by which scripts compare the stored bytes of a dead letter.

    It begins with their number: a script reads only as many bytes as the caller has read.
    """
    return f"{len(data)} {sha1(data, usedforsecurity=False).hexdigest()}"


def size_of(digest: str) -> int:
    """Return the number of bytes in a :func:`digest_of`."""
    return int(digest.partition(" ")[0])


def read_codes(reply: bytes) -> list[StatusCode]:
    """Return the outcome of each dead letter in the reply of a script."""
    return cast("list[StatusCode]", list(reply.decode()))


class DeadLetterStore(StorePart):
    """The part of the store for dead letters."""

    def add(self, queue: str, id: str, reason: str, message: bytes, details: bytes = b"") -> None:
        """Add a dead letter for a message that is not in Redis."""
        layout = self._runner.layout_of(queue).text
        args = [dead_letter_text(id), dead_letter_text(reason), message, queue, layout]
        self._run("deadletters/add", queue, [*args, details, kind_of(reason)])

    def all(
        self,
        queue: str,
        died_from: int | None = None,
        died_to: int | None = None,
        *,
        ahead: bool = False,
        ask: Ask | None = None,
    ) -> Iterator[DeadLetterRecord]:
        """Yield the dead letters of a queue. Parameters of :meth:`pages`."""
        return chain.from_iterable(self.pages(queue, died_from, died_to, ahead=ahead, ask=ask))

    def pages(
        self,
        queue: str,
        died_from: int | None = None,
        died_to: int | None = None,
        page: int = PAGE_DEAD_LETTERS,
        *,
        ahead: bool = False,
        ask: Ask | None = None,
    ) -> Iterator[list[DeadLetterRecord]]:
        """Yield the dead letters of a queue, as :meth:`places` does, without scores."""
        found = self.places(queue, died_from, died_to, page, ahead=ahead, ask=ask)
        return ([record for _, record in each] for each in found)

    def places(
        self,
        queue: str,
        died_from: float | None = None,
        died_to: int | None = None,
        page: int = PAGE_DEAD_LETTERS,
        *,
        after: bytes = b"",
        first_page: int | None = None,
        ahead: bool = False,
        ask: Ask | None = None,
    ) -> Iterator[list[tuple[float, DeadLetterRecord]]]:
        """Yield the dead letters of a queue, by time of death, with their scores in the index.

        Each dead letter comes once. Dead letters added or removed meanwhile may be missing.

        Parameters
        ----------
        died_from, died_to : float | None
            Only dead letters that died between both times, in ms since 1970; None for no limit.
        page : int
            Most dead letters of a page.
        after : bytes
            Begin behind the dead letter with this id that died at *died_from*; ``b""`` for none.
        first_page : int | None
            Most dead letters of the first page; each further page has twice as many, up to *page*.
            None: all have *page*.
        ahead : bool
            Whether Redis reads the next page while the caller handles this page. The iterator then
            uses a separate connection until its end.
        ask : Callable
            Calls a function with the stores; if a server is gone, again on new connections.
            Without *ask* a lost connection is an error.
        """
        ask = ask or (lambda question: question(self._runner))
        low: float | str = "-inf" if died_from is None else died_from
        high: float | str = "+inf" if died_to is None else died_to
        replies: deque[Any] = deque()
        size = page if first_page is None else first_page

        def send() -> None:
            nonlocal size
            call = self._new_call("deadletters/page", queue, [low, high, size, after])
            size = min(page, 2 * size)
            if line is None:
                replies.append(ask(lambda runners: runners.of(queue).run(call)))
            else:
                line.send(queue, call, replies.append)

        with PipelinedCalls(ask) if ahead else nullcontext() as line:
            send()
            while replies or (line is not None and line.settle()):
                more, sizes, text = replies.popleft()
                found = []
                for id, data, died in in_threes(cut(sizes, text)):
                    # Several may have died at one moment: the id of the last one counts too.
                    low, after = float(died), id
                    if data is not None:
                        found.append((low, DeadLetterRecord.unpack(to_text(id), data)))
                if more == b"1" and line is not None:
                    send()
                if found:
                    yield found
                if more == b"1" and line is None:
                    send()

    def read_steps(self, queue: str, ids: Sequence[bytes]) -> Steps[list[DeadLetterRecord]]:
        """Return the existing dead letters of *ids*."""
        dead = self._keys.queue(queue).dead
        found = yield from ScanStore(self._runner).values_steps(dead, ids)
        return [
            DeadLetterRecord.unpack(to_text(id), data)
            for id, data in zip(ids, found, strict=True)
            if data is not None
        ]

    read = ran(read_steps)

    def get(self, queue: str, id: str) -> DeadLetterRecord | None:
        """Return one dead letter; None if it does not exist."""
        found = self.read(queue, [to_bytes(id)])
        return found[0] if found else None

    def count_steps(
        self, queue: str, died_from: float | None = None, died_to: int | None = None
    ) -> Steps[int]:
        """Return the number of a queue's dead letters that died between two times (ms)."""
        low: float | str = "-inf" if died_from is None else died_from
        high: float | str = "+inf" if died_to is None else died_to
        number: int = yield Command.of("ZCOUNT", self._keys.queue(queue).dead_at, low, high)
        return number

    count = ran(count_steps)

    def extent_steps(
        self, queue: str, died_from: float | None, died_to: int | None
    ) -> Steps[DeadLetterExtent]:
        """Return the extent of the dead letters that died between two times (ms)."""
        number = yield from self.count_steps(queue, died_from, died_to)
        if not number:
            return DeadLetterExtent(0, math.inf, died_to)
        dead_at = self._keys.queue(queue).dead_at
        low: float | str = "-inf" if died_from is None else died_from
        some = yield Command.of("ZRANGEBYSCORE", dead_at, low, "+inf", "WITHSCORES", "LIMIT", 0, 1)
        # Without one it was removed meanwhile.
        [(_, first)] = members_with_scores(some) or [(b"", math.inf)]
        last_ms = clock_us((yield time_command())) // 1000
        # If the clock was set back, or after a failover, some dead letters died later than now.
        if (yield Command.of("ZCOUNT", dead_at, last_ms + 1, "+inf")):
            last = yield Command.of("ZRANGE", dead_at, -1, -1, "WITHSCORES")
            for _, at in members_with_scores(last):
                if math.isinf(at):  # other code wrote this score: there is no latest time
                    return DeadLetterExtent(number, first, died_to)
                last_ms = int(at)
        if died_to is not None:
            last_ms = min(last_ms, died_to)
        return DeadLetterExtent(number, first, last_ms)

    def replay_call(
        self, queue: str, to: str, layout: Layout, dead_letters: Sequence[Replay], token: str
    ) -> EntriesCall:
        """Return the call that turns dead letters, at most about a hundred, into entries of *to*.

        The reply has a :data:`~celery_delayq.model.script_values.StatusCode` for each dead letter.
        For a minute, a repeated call with the same *token* changes nothing and returns the same
        reply.

        Parameters
        ----------
        layout : Layout
            The layout of the queue *to*.
        """
        key = self._keys.queue(queue)
        keys = {"dead": key.dead, "dead_at": key.dead_at, "answer": token}
        call = self._runner.entries_call("deadletters/replay", to, layout=layout, **keys)
        for id, died_ms, entry, digest in dead_letters:
            call.args += to_bytes(id), died_ms, digest
            call.add(entry)
        return call

    def replay_in_place(
        self,
        queue: str,
        layout: Layout,
        died_from: float | str,
        died_to: float | str,
        after: bytes,
        token: str,
        limit: int = REPLAY_BATCH,
    ) -> ChangedInPlace:
        """Make tasks of dead letters ready again, except those whose messages must be read.

        For a minute, a repeated call with the same *token* changes nothing and returns the same
        reply.

        Parameters
        ----------
        died_from, died_to
            In ms since 1970; *died_from* may be ``-inf``.
        after : bytes
            The call begins after the dead letter with this id that died at *died_from*; ``b""``
            for none.
        """
        args = [died_from, died_to, limit, token, after, *layout.steps]
        return ChangedInPlace.read(
            self._run("deadletters/replay_in_place", queue, args, layout=layout, answer=token)
        )

    def purge_in_place(
        self,
        queue: str,
        died_from: float | str,
        died_to: float | str,
        after: bytes,
        token: str,
        limit: int = PURGE_BATCH,
    ) -> ChangedInPlace:
        """Delete dead letters, except those whose deletion must be reported to a result backend.

        Parameters and repeats as in :meth:`replay_in_place`.
        """
        args = [died_from, died_to, limit, after, *CRASH_REASONS]
        return ChangedInPlace.read(
            self._run("deadletters/purge_in_place", queue, args, answer=token)
        )

    def delete_call(
        self,
        queue: str,
        dead_letters: Sequence[tuple[str, int]],
        token: str,
        *,
        digests: Sequence[str] | None = None,
    ) -> Call:
        """Return the call that deletes dead letters, by id and time of death (ms).

        With *digests*, the :func:`digest_of` each, only those that still have these bytes. *token*
        as in :meth:`replay_call`.
        """
        named = zip(dead_letters, digests or repeat("", len(dead_letters)), strict=True)
        args = [part for (id, died_ms), each in named for part in (to_bytes(id), died_ms, each)]
        return self._new_call("deadletters/delete", queue, args, answer=token)

    def delete(
        self,
        queue: str,
        dead_letters: Sequence[tuple[str, int]],
        token: str | None = None,
        *,
        digests: Sequence[str] | None = None,
    ) -> list[StatusCode]:
        """Run the :meth:`delete_call`, and return the outcome of each dead letter."""
        if not dead_letters:
            return []
        call = self.delete_call(queue, dead_letters, token or uuid4().hex, digests=digests)
        return read_codes(self._runner.run(call))

    def swap_steps(
        self, queue: str, swaps: Sequence[Swap], token: str | None = None
    ) -> Steps[list[StatusCode]]:
        """Swap dead letters, each only if it is as it was read. *token* as in :meth:`replay_call`.

        Return the outcome of each: ``"c"`` for another dead letter.
        """
        token = token or uuid4().hex
        codes: list[StatusCode] = []
        parts = portions(swaps, SWAP_BATCH, lambda each: len(each.before) + len(each.after))
        for number, part in enumerate(parts):
            args = [
                value for each in part for value in (to_bytes(each.name), each.before, each.after)
            ]
            reply = yield self._new_call(
                "deadletters/swap", queue, args, answer=f"{token}-{number}"
            )
            codes += read_codes(reply)
        return codes

    swap = ran(swap_steps)

    def trim_by(self, queue: str, layout: Layout) -> None:
        """Delete dead letters beyond the limits of a queue, and log how many.

        One call deletes a limited number. If dead letters go to an archive, none is deleted.
        """
        age, most = layout.limits.dead_letters_age, layout.limits.dead_letters_max
        if layout.limits.archived or not (age or most):
            return
        old = many = 0
        for _ in range(MAX_TRIM_CALLS):
            found = self.trim(queue, age, most, TRIM_BATCH)
            old, many = old + found[0], many + found[1]
            if sum(found) < TRIM_BATCH:
                break
        if old or many:
            logger.warning(
                "Dead letters of queue %r were forgotten: %d older than dead_letters_age=%g s, %d "
                "more than dead_letters_max=%d",
                queue,
                old,
                age,
                many,
                most,
            )

    def trim(self, queue: str, age: float, most: int, limit: int) -> tuple[int, int]:
        """Delete up to *limit* dead letters. Return the numbers beyond *age* and beyond *most*.

        Parameters
        ----------
        age : float
            Seconds for which a dead letter is kept; 0: for ever.
        most : int
            Most dead letters to keep; 0: no limit.
        """
        old, many = self._run("deadletters/trim", queue, [int(age * 1000), most, limit])
        return old, many

    def restore(
        self, queue: str, dead_letters: Sequence[tuple[str, int, bytes]], token: str | None = None
    ) -> list[StatusCode]:
        """Add dead letters that were exported: id, time of death (ms) and stored bytes of each.

        The code is ``d`` for an added dead letter and ``k`` for an existing one. *token* as in
        :meth:`replay_call`.
        """
        if not dead_letters:
            return []
        args: list[Any] = [queue, self._runner.layout.text]
        for id, died_ms, data in dead_letters:
            args += to_bytes(id), died_ms, data
        token = token or uuid4().hex
        return read_codes(self._run("deadletters/restore", queue, args, answer=token))

    def take_turn(self, who: str, seconds: float) -> bool:
        """Return whether *who* has the turn to archive, for *seconds*.

        The turn only saves work: several processes may archive at once.
        """
        key, client, turn_ms = self._keys.archiving, self._runner.client, int(seconds * 1000)
        if client.set(key, who, nx=True, px=turn_ms):
            return True
        if cast(int, client.pttl(key)) > turn_ms:
            client.pexpire(key, turn_ms)  # the clock was set back
        return bool(client.get(key) == who.encode())
