"""Manages the schedule in Redis: find, list, cancel, move, run, pause, revoke."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, cast
from uuid import uuid4

from celery_delayq.model.canvas import Canvas
from celery_delayq.model.envelope import Due, entry_id, task_field, task_name
from celery_delayq.model.lookup import (
    EntryCondition,
    FoundPage,
    IfDue,
    ListedEntry,
    Location,
    Name,
    PausedNames,
    Position,
    ReadyAction,
    Revoked,
    StatusCode,
    score_of,
    to_bytes,
    to_text,
    worst_code,
)
from celery_delayq.store.keys import Layout
from celery_delayq.store.scan import ScanStore, Stretch, answered
from celery_delayq.store.scripting.calls import Call, Steps
from celery_delayq.store.scripting.runner import ScriptRunner, StorePart, ran
from celery_delayq.utils import foreign
from celery_delayq.utils.portions import batches

#: Most ids of one script call, and most names that it looks at. Many messages with one id take
#: several calls.
ID_BATCH = 40

#: Most keys that one call of ``control/queues_with.lua`` looks at, once for each id.
MAX_CALL_KEYS = 1000

#: The first message with an id: see ``include/find.lua``.
_FIRST_MESSAGE = b"["

#: Messages that one call of ``schedule/exists.lua`` looks for.
EXISTS_BATCH = 100

#: Most revoked ids that one call reads or looks for.
REVOKED_BATCH = 1000

#: Most calls for a part of a page that return no entry: most are of other priorities.
MAX_EMPTY_CALLS = 4


class ControlStore(StorePart):
    """The part of the gateway for those who manage the schedule."""

    def __init__(self, runner: ScriptRunner) -> None:
        super().__init__(runner)
        self._scan = ScanStore(runner)

    # -- to look at

    def exists(self, queue: str, messages: Iterable[tuple[str, str]]) -> str:
        """Return a code of ``schedule/exists.lua`` for each id and message id: whether that is
        there."""
        keys = [*self._keys.queue(queue).state]
        messages, codes = iter(messages), []
        part: list[tuple[str, str]] = []
        while part := part or [*islice(messages, EXISTS_BATCH)]:
            # Together: redis-py takes longer for many arguments than Redis does for all the rest.
            ids = "".join([f"{entry_id(id)}\0" for id, _ in part])
            message_ids = "".join([f"{message_id}\0" for _, message_id in part])
            codes.append(self._run("schedule/exists", keys, [ids, message_ids]).decode())
            part = part[len(codes[-1]) :]
        return "".join(codes)

    def queues_with_steps(self, queues: Sequence[str], ids: Sequence[str]) -> Steps[list[str]]:
        """Return those of *queues* that may have messages with one of *ids*: mostly one."""
        names = [to_bytes(id if isinstance(id, Name) else entry_id(id)) for id in ids]
        found: set[str] = set()
        for some in batches(names, ID_BATCH):
            parts = [*batches(queues, max(1, MAX_CALL_KEYS // (4 * len(some))))]
            calls = [
                Call("control/queues_with", [*chain.from_iterable(map(self._by_id, part))], some)
                for part in parts
            ]
            for part, places in zip(parts, answered((yield calls)), strict=True):
                found.update(part[place - 1] for place in places)
        return [queue for queue in queues if queue in found]

    queues_with = ran(queues_with_steps)

    def _by_id(self, queue: str) -> Sequence[str]:
        return self._keys.queue(queue).by_id

    def find_steps(self, queue: str, ids: Sequence[str]) -> Steps[list[Location]]:
        """Return the places of all messages of a queue with one of *ids*."""
        keys = [*self._keys.queue(queue).state]
        places: list[Location] = []
        number, start = 0, _FIRST_MESSAGE
        while number < len(ids):
            args = [ID_BATCH, start, *map(_target, ids[number : number + ID_BATCH])]
            done, start, *found = yield Call("control/find", keys, args)
            places += [Location.read(*each) for each in found]
            number += done
        return places

    find = ran(find_steps)

    def page_steps(
        self,
        queue: str,
        where: EntryCondition,
        limit: int,
        after: Position | None = None,
        upto: Position | None = None,
        *,
        records: bool = True,
        began: int | None = None,
        goes_on: bool = False,
    ) -> Steps[FoundPage]:
        """Return up to *limit* entries in order of due.

        There may be fewer and more behind them, where a priority is given or entries were moved.

        Parameters
        ----------
        after, upto : Position | None
            Only entries behind the one, and not behind the other.
        records : bool
            Without them these are empty.
        began : int | None
            When the reading began (:attr:`Stretch.began`).
        goes_on : bool
            Whether the reading goes on after the last page.
        """
        stretch = Stretch.of(queue, where, began).finite()._replace(after=after, upto=upto)
        entries: list[ListedEntry] = []
        last_due: int | None = None
        empty = 0
        while True:
            some = limit - len(entries)
            call = self._scan.part_call(
                stretch, some, step=where.step, records=records, goes_on=goes_on
            )
            part = self._scan.read_part((yield call))
            found = part.listed()
            last_due = last_due if stretch.after else part.last_due
            empty = 0 if found else empty + 1
            entries += found
            if part.end is None or empty == MAX_EMPTY_CALLS or len(entries) == limit:
                return FoundPage(entries, part.end, last_due)
            stretch = stretch._replace(after=part.end)

    page = ran(page_steps)

    def records_steps(self, queue: str, names: Sequence[str]) -> Steps[dict[str, bytes]]:
        """Return the records of those entries that are still scheduled, by name."""
        fields = [to_bytes(name) for name in names]
        found = yield from self._scan.values_steps(self._keys.queue(queue).entries, fields)
        return {name: data for name, data in zip(names, found, strict=True) if data is not None}

    def count_steps(self, queue: str, where: EntryCondition) -> Steps[int]:
        """Return how many entries of a queue there are; *where* names no step."""
        pieces = Stretch.of(queue, where).pieces()
        return sum(answered((yield [self._scan.size_command(piece) for piece in pieces])))

    def controls(self) -> PausedNames:
        """Return the paused queues and tasks."""
        found = cast("dict[bytes, bytes]", self._runner.client.hgetall(self._keys.control))
        revision = foreign.parse_integer(found.pop(b"revision", b"")) or 0
        names = {to_text(name): foreign.parse_integer(since) or 0 for name, since in found.items()}
        queues = {name[1:]: since for name, since in names.items() if name[:1] == "q"}
        tasks = {task_name(name[1:]): since for name, since in names.items() if name[:1] == "t"}
        return PausedNames(revision, queues, tasks)

    # -- to change

    def cancel_steps(
        self,
        queue: str,
        layout: Layout,
        ids: Sequence[str],
        *,
        if_due: IfDue = None,
        ready: ReadyAction = "cancel",
        token: str | None = None,
    ) -> Steps[list[StatusCode]]:
        """Cancel entries.

        This and the others return the outcome of each. Called again with the same *token*, they
        change nothing more and return the same, for a minute.

        Parameters
        ----------
        ready : ReadyAction
            What to do with tasks that are ready and leased to no process.
        if_due : int | Sequence[int | None] | None
            Only entries that are due then (ms): one time for all, or one for each.
        """
        key = self._keys.queue(queue)
        keys = [key.quarantined, *self._keys.ready_lists(queue, layout)]
        args = [ready]
        return self._in_parts("control/cancel", queue, token, keys, args, _each(ids, if_due))

    cancel = ran(cancel_steps)

    def reschedule_steps(
        self, queue: str, moves: Sequence[tuple[str, Due, int | None]], token: str | None = None
    ) -> Steps[list[StatusCode]]:
        """Move entries: id, new due, and the one that it must have now (ms), if any."""
        # A countdown that is over leads to the past.
        items = [
            (id, due.ms if not due.relative else f"+{due.ms}" if due.ms > 0 else 0, if_due)
            for id, due, if_due in moves
        ]
        keys = [*self._keys.queue(queue).moves]
        return self._in_parts("control/reschedule", queue, token, keys, [self._keys.wake], items)

    reschedule = ran(reschedule_steps)

    def run_now_steps(
        self,
        queue: str,
        layout: Layout,
        ids: Sequence[str],
        *,
        if_due: IfDue = None,
        token: str | None = None,
    ) -> Steps[list[StatusCode]]:
        """Make entries ready at once, to run next: the last one first."""
        key = self._keys.queue(queue)
        keys = [*key.moves, key.wake, self._keys.control]
        keys += self._keys.ready_lists(queue, layout)
        args = [self._keys.wake, len(layout.steps), *layout.steps]
        return self._in_parts("control/run_now", queue, token, keys, args, _each(ids, if_due))

    run_now = ran(run_now_steps)

    def _in_parts(
        self,
        name: str,
        queue: str,
        token: str | None,
        keys: list[str],
        args: list[Any],
        items: Sequence[tuple[Any, ...]],
    ) -> Steps[list[StatusCode]]:
        """Call a script for all *items*, some at a time: each has an id, then its arguments."""
        key = self._keys.queue(queue)
        token = token or uuid4().hex
        codes: list[StatusCode] = []
        number, calls, start = 0, 0, _FIRST_MESSAGE
        while number < len(items):
            some = items[number : number + ID_BATCH]
            flat = [x for id, *rest in some for x in (_target(id), *map(_optional, rest))]
            its_keys = [*key.state, self._keys.next_due, key.answer(f"{token}-{calls}"), *keys]
            its_args = [queue, ID_BATCH, start, *args, *flat]
            found, _, more = (yield Call(name, its_keys, its_args)).partition(b"\n")
            told = cast("list[StatusCode]", list(found.decode()))
            # The first code may be for more messages of the id that the last call has begun.
            codes[number:] = [worst_code([*codes[number:], told[0]]), *told[1:]]
            number, start = len(codes) - bool(more), more or _FIRST_MESSAGE
            calls += 1
        return codes

    def use_retry_budget(self, budget: str, most: int, what: str, seconds: int) -> bool:
        """Use one of at most *most* retries of a canvas; False when none is left.

        The same again, *what* says which, costs nothing. It is remembered for so many seconds.
        """
        args = [what, most, seconds]
        return bool(self._run("leases/use_retry_budget", [self._keys.budget(budget)], args))

    def pause(
        self,
        queues: Iterable[str],
        *,
        queue: str | None = None,
        task: str | None = None,
        resume: bool = False,
        token: str | None = None,
    ) -> bool:
        """Pause a queue or a task, or let it go on; False when it was so already.

        *queues* are looked at when it goes on: they may have paused and due entries. *token* as for
        :meth:`cancel`.
        """
        field = f"q{queue}" if queue is not None else f"t{task_field(task or '')}"
        names = list(queues)
        keys = [self._keys.control, self._keys.next_due, self._keys.answer(token or uuid4().hex)]
        keys += [self._keys.queue(name).due for name in names]
        args = [field, "0" if resume else "1", self._keys.wake, *names]
        return bool(int(self._run("control/pause", keys, args)))

    def revoke(
        self,
        seconds: float,
        ids: Iterable[str] = (),
        stamps: Mapping[str, Any] | None = None,
        canvas: Canvas | None = None,
    ) -> int:
        """Remember ids, stamps, a canvas for so many seconds; return how many are remembered."""
        members = _revoked_members(ids, stamps)
        if canvas is not None:
            members.append(to_bytes(canvas.text))
        return self.remember_revoked(seconds, members)

    def remember_revoked(self, seconds: float, members: Iterable[bytes]) -> int:
        """Remember members of the set of revokes; return how many are remembered."""
        keys = [self._keys.control, self._keys.revoked]
        return int(self._run("control/revoke", keys, [int(seconds * 1000), *members]))

    def not_revoked(self, ids: Sequence[str], stamps: Mapping[str, Any] | None = None) -> list[str]:
        """Return which of ids, and of stamps in JSON, are not remembered as revoked."""
        return [to_text(each[1:]) for each in self.not_remembered(_revoked_members(ids, stamps))]

    def not_remembered(self, members: Iterable[bytes]) -> list[bytes]:
        """Return which members the set of revokes lacks."""
        new: list[bytes] = []
        for some in batches(members, REVOKED_BATCH):
            scores = cast(
                "list[float | None]", self._runner.client.zmscore(self._keys.revoked, some)
            )
            found = zip(some, scores, strict=True)
            new += [member for member, revoked_at in found if revoked_at is None]
        return new

    def revoked(self, since_ms: int = 0) -> Revoked:
        """Return ids, stamps and canvases that were revoked since then."""
        parts = [*self.revoked_members(since_ms)]
        members = [member for some, _ in parts for member in some]
        ids = [to_text(member[1:]) for member in members if member[:1] == b"i"]
        stamps = [stamp for member in members if (stamp := _stamp(member))]
        both = [member for member in members if member[:1] in (b"r", b"g")]
        canvases = [Canvas(to_text(member[:1]), to_text(member[1:])) for member in both]
        return Revoked(ids, stamps, canvases, parts[-1][1])

    def revoked_members(self, since_ms: int = 0) -> Iterator[tuple[list[bytes], int]]:
        """Yield members of the set of revokes since then, and the time of the last of each part."""
        # From the last time on: Redis walks over all that it is to leave out.
        last, seen = since_ms, 0
        while True:
            found = cast(
                "list[tuple[bytes, float]]",
                self._runner.client.zrangebyscore(
                    self._keys.revoked, last, "+inf", seen, REVOKED_BATCH, withscores=True
                ),
            )
            before, last = last, score_of(found[-1][1]) if found else last
            yield [member for member, _ in found], last
            if len(found) < REVOKED_BATCH:
                return
            then = sum(at == last for _, at in found)
            seen = seen + then if last == before else then


def _each(ids: Sequence[str], if_due: IfDue) -> list[tuple[str, int | None]]:
    """Return ids, each with the due that it must have."""
    dues = if_due if isinstance(if_due, Sequence) else [if_due] * len(ids)
    return [*zip(ids, dues, strict=True)]


def _stamp(member: bytes) -> dict[str, Any]:
    """Return a stamp that was revoked; none for anything else."""
    if member[:1] == b"s":
        with suppress(ValueError):
            stamp = foreign.loads(member[1:])
            return stamp if isinstance(stamp, dict) else {}
    return {}


def _revoked_members(ids: Iterable[str], stamps: Mapping[str, Any] | None) -> list[bytes]:
    """Return the members of the set of revokes for ids and stamps."""
    texts = (json.dumps({name: value}, default=list) for name, value in (stamps or {}).items())
    return [*(b"i" + to_bytes(id) for id in ids), *(b"s" + to_bytes(text) for text in texts)]


def _target(id: str) -> bytes:
    """Return an id, or the name of one message: only a name contains a NUL."""
    if isinstance(id, Name):
        return to_bytes(id if "\0" in id else f"{id}\0")
    return to_bytes(entry_id(id))


def _optional(value: Any) -> Any:
    return "" if value is None else value
