"""Manages the schedule in Redis: find, list, cancel, move, run, pause, revoke."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, cast
from uuid import uuid4

from celery_delayq.model.canvas import Canvas
from celery_delayq.model.envelope import (
    Due,
    entry_id,
    policy_of_existing,
    task_field,
    task_name,
)
from celery_delayq.model.script_values import (
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
    Swap,
    score_of,
    to_bytes,
    to_text,
    worst_code,
)
from celery_delayq.store.keys import Layout
from celery_delayq.store.scan import PAGE_FIELDS, ScanStore, Stretch
from celery_delayq.store.scripting.calls import Steps, due_argument
from celery_delayq.store.scripting.replies import answered, cut
from celery_delayq.store.scripting.runner import ScriptRunner, StorePart, ran
from celery_delayq.utils import foreign
from celery_delayq.utils.portions import batches, portions

#: Most ids of one script call, and most messages that the call looks at. Many messages with one id
#: take several calls.
ID_BATCH = 40

#: Most ids that one call cancels, in batches of ids: a cancel takes half the time of other changes.
CANCEL_ID_BATCHES = 2

#: Most keys in which one call of ``control/queues_with.lua`` looks for the ids.
MAX_CALL_KEYS = 1000

#: The start of a search among the messages with one id: see ``include/find.lua``.
_FIRST_MESSAGE = b"["

#: Most messages that one call of ``schedule/exists.lua`` looks for.
EXISTS_BATCH = 100

#: Most revoked ids that one call reads or looks for.
REVOKED_BATCH = 1000

#: Bytes of records after which a page ends: whoever reads a page may have to hold twice as many.
MAX_PAGE_BYTES = 4_000_000

#: Most calls in a row without an entry for a page: entries of other priorities are skipped.
MAX_EMPTY_CALLS = 4


class ControlStore(StorePart):
    """The part of the store for managing the schedule.

    A method ``…_steps`` yields its calls, so that the calls of many queues are sent together. The
    method without this ending (:func:`ran`) makes the calls of one queue at once.
    """

    def __init__(self, runner: ScriptRunner) -> None:
        super().__init__(runner)
        self._scan = ScanStore(runner)

    # -- reads

    def exists(self, queue: str, messages: Iterable[tuple[str, str]]) -> str:
        """Return a code of ``schedule/exists.lua`` for each id and message id: whether the message
        exists.
        """
        codes = ""
        for part in batches(messages, EXISTS_BATCH):
            # A call answers for fewer messages than asked if it has much to read.
            while part:
                # Joined: packing many arguments takes longer than the whole script.
                ids = "".join([f"{entry_id(id)}\0" for id, _ in part])
                message_ids = "".join([f"{message_id}\0" for _, message_id in part])
                answered_codes = self._run("schedule/exists", queue, [ids, message_ids]).decode()
                codes += answered_codes
                part = part[len(answered_codes) :]
        return codes

    def queues_with_steps(self, queues: Sequence[str], ids: Sequence[str]) -> Steps[list[str]]:
        """Return the queues of *queues* that may have messages with one of *ids*."""
        names = [to_bytes(id if isinstance(id, Name) else entry_id(id)) for id in ids]
        found: set[str] = set()
        for some in batches(names, ID_BATCH):
            parts = [*batches(queues, max(1, MAX_CALL_KEYS // (4 * len(some))))]
            keys = ([*chain.from_iterable(map(self._by_id, part))] for part in parts)
            calls = [self._new_call("control/queues_with", None, some, more=its) for its in keys]
            for part, places in zip(parts, answered((yield calls)), strict=True):
                found.update(part[place - 1] for place in places)
        return [queue for queue in queues if queue in found]

    queues_with = ran(queues_with_steps)

    def _by_id(self, queue: str) -> Sequence[str]:
        return self._keys.queue(queue).by_id

    def find_steps(self, queue: str, ids: Sequence[str]) -> Steps[list[Location]]:
        """Return the places of all messages of a queue with one of *ids*."""
        places: list[Location] = []
        number, start = 0, _FIRST_MESSAGE
        while number < len(ids):
            args = [ID_BATCH, start, *map(_target, ids[number : number + ID_BATCH])]
            done, start, *found = yield self._new_call("control/find", queue, args)
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
        """Return up to *limit* entries, sorted by due.

        With a priority, with large records, or if entries were moved, a page that is not the last
        one may be shorter.

        Parameters
        ----------
        after, upto : Position | None
            Only entries after *after*, up to *upto*.
        records : bool
            If False, records are empty.
        began : int | None
            The time at which the reading began (:attr:`Stretch.began`).
        goes_on : bool
            Whether the caller continues the reading after the last page.
        """
        stretch = Stretch.of(queue, where, began).finite()._replace(after=after, upto=upto)
        entries: list[ListedEntry] = []
        last_due: int | None = None
        empty = size = 0
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
            size += sum(len(each.record) for each in found)
            is_full = len(entries) == limit or size >= MAX_PAGE_BYTES
            if part.end is None or empty == MAX_EMPTY_CALLS or is_full:
                return FoundPage(entries, part.end, last_due)
            stretch = stretch._replace(after=part.end)

    page = ran(page_steps)

    def records_steps(self, queue: str, names: Sequence[str]) -> Steps[list[bytes | None]]:
        """Return the records of the first of *names*: about 1 MB, and at least one.

        A record is None if the entry is not scheduled any more.
        """
        fields = [to_bytes(name) for name in names[:PAGE_FIELDS]]
        entries = self._keys.queue(queue).entries
        return cut(*(yield self._new_call("scan/hash_values", None, fields, hash=entries)))

    def count_steps(self, queue: str, where: EntryCondition) -> Steps[int]:
        """Return the number of entries of a queue. *where* must not have a priority step."""
        return (yield from self.counts_steps(queue, [where]))[0]

    def counts_steps(self, queue: str, each: Sequence[EntryCondition]) -> Steps[list[int]]:
        """Return the number of entries of a queue for each condition, in one round trip."""
        pieces = [Stretch.of(queue, where).pieces() for where in each]
        commands = [self._scan.size_command(piece) for piece in chain.from_iterable(pieces)]
        sizes = iter(answered((yield commands)))
        return [sum(islice(sizes, len(its))) for its in pieces]

    def controls(self) -> PausedNames:
        """Return the paused queues and tasks."""
        found = cast("dict[bytes, bytes]", self._runner.client.hgetall(self._keys.control))
        revision = foreign.parse_integer(found.pop(b"revision", b"")) or 0
        names = {to_text(name): foreign.parse_integer(since) or 0 for name, since in found.items()}
        queues = {name[1:]: since for name, since in names.items() if name[:1] == "q"}
        tasks = {task_name(name[1:]): since for name, since in names.items() if name[:1] == "t"}
        return PausedNames(revision, queues, tasks)

    # -- changes

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
        """Cancel entries. Return the outcome of each, as :meth:`reschedule` and :meth:`run_now` do.

        For a minute, a repeated call with the same *token* changes nothing and returns the same.

        Parameters
        ----------
        ready : ReadyAction
            The action for ready tasks that no process has leased.
        if_due : int | Sequence[int | None] | None
            Only entries with this due time (ms): one for all, or one for each.
        """
        quarantined = self._keys.queue(queue).quarantined
        lists = [quarantined, *self._keys.ready_lists(queue, layout)]
        items = _each(ids, if_due)
        return self._in_parts(
            "control/cancel", queue, token, [ready], items, CANCEL_ID_BATCHES, more=lists
        )

    cancel = ran(cancel_steps)

    def reschedule_steps(
        self, queue: str, moves: Sequence[tuple[str, Due, int | None]], token: str | None = None
    ) -> Steps[list[StatusCode]]:
        """Move entries: id, new due time, and required due time (ms) or None, of each."""
        items = [(id, due_argument(due), if_due) for id, due, if_due in moves]
        return self._in_parts("control/reschedule", queue, token, [self._keys.wake], items)

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
        """Make entries ready at once, to run next. The last one of *ids* runs first."""
        args = [self._keys.wake, len(layout.steps), *layout.steps]
        items = _each(ids, if_due)
        return self._in_parts("control/run_now", queue, token, args, items, layout=layout)

    run_now = ran(run_now_steps)

    def swap_steps(
        self, queue: str, swaps: Sequence[Swap], token: str | None = None
    ) -> Steps[list[StatusCode]]:
        """Swap the records of entries, each only if it is as it was read. *token* as in
        :meth:`cancel_steps`.

        Return the outcome of each: ``"c"`` for another record or due time, ``"k"`` if another
        message has the new unique key, ``"x"`` if the new record is that of another message.
        """
        token = token or uuid4().hex
        codes: list[StatusCode] = []
        parts = portions(swaps, ID_BATCH, lambda each: len(each.before) + len(each.after))
        for number, part in enumerate(parts):
            flat = [
                value
                for name, before, after, if_due, names in part
                for value in (
                    *(to_bytes(name), before, after, _optional(if_due)),
                    policy_of_existing("error", names),
                )
            ]
            args = [queue, self._keys.wake, *flat]
            reply = yield self._new_call("control/swap", queue, args, answer=f"{token}-{number}")
            codes += cast("list[StatusCode]", list(reply.decode()))
        return codes

    swap = ran(swap_steps)

    def _in_parts(
        self,
        name: str,
        queue: str,
        token: str | None,
        args: list[Any],
        items: Sequence[tuple[Any, ...]],
        id_batches: int = 1,
        **keys: Any,
    ) -> Steps[list[StatusCode]]:
        """Call a script for all *items*, in parts. Each item is an id and its arguments."""
        most = id_batches * ID_BATCH
        token = token or uuid4().hex
        codes: list[StatusCode] = []
        number, calls, start = 0, 0, _FIRST_MESSAGE
        while number < len(items):
            batch = items[number : number + most]
            flat = [x for id, *rest in batch for x in (_target(id), *map(_optional, rest))]
            call_args = [queue, most, start, *args, *flat]
            reply = yield self._new_call(name, queue, call_args, answer=f"{token}-{calls}", **keys)
            found, _, more = reply.partition(b"\n")
            first, *others = cast("list[StatusCode]", list(found.decode()))
            if number < len(codes):  # further messages of the id with which the last call ended
                first = worst_code([codes.pop(), first])
            codes += first, *others
            number, start = len(codes) - bool(more), more or _FIRST_MESSAGE
            calls += 1
        return codes

    def use_retry_budget(self, budget: str, most: int, what: str, seconds: int) -> bool:
        """Use one of at most *most* retries of a canvas; False if none is left.

        *what* names the retry. Using the same retry again costs nothing. Redis remembers the used
        retries for *seconds*.
        """
        args = [what, most, seconds]
        return bool(self._run("leases/use_retry_budget", None, args, budget=budget))

    def pause(
        self,
        queues: Iterable[str],
        *,
        queue: str | None = None,
        task: str | None = None,
        resume: bool = False,
        token: str | None = None,
    ) -> bool:
        """Pause or resume a queue or a task; False if this changes nothing.

        A resume plans a look at *queues*, which may have paused and due entries. *token* as in
        :meth:`cancel`.
        """
        field = f"q{queue}" if queue is not None else f"t{task_field(task or '')}"
        names = list(queues)
        dues = [self._keys.queue(name).due for name in names]
        args = [field, "0" if resume else "1", self._keys.wake, *names]
        token = token or uuid4().hex
        return bool(int(self._run("control/pause", None, args, answer=token, more=dues)))

    def revoke(
        self,
        seconds: float,
        ids: Iterable[str] = (),
        stamps: Mapping[str, Any] | None = None,
        canvas: Canvas | None = None,
    ) -> int:
        """Remember ids, stamps and a canvas as revoked, for *seconds*. Return the number of all
        remembered revokes.
        """
        members = _revoked_members(ids, stamps)
        if canvas is not None:
            members.append(to_bytes(canvas.text))
        return self.add_revoked_members(seconds, members)

    def add_revoked_members(self, seconds: float, members: Iterable[bytes]) -> int:
        """Add members to the set of revokes. Return the number of members of the set."""
        return int(self._run("control/revoke", None, [int(seconds * 1000), *members]))

    def not_revoked(self, ids: Sequence[str], stamps: Mapping[str, Any] | None = None) -> list[str]:
        """Return the ids, and the stamps in JSON, that are not remembered as revoked."""
        return [
            to_text(each[1:])
            for each in self.missing_revoked_members(_revoked_members(ids, stamps))
        ]

    def missing_revoked_members(self, members: Iterable[bytes]) -> list[bytes]:
        """Return the members that the set of revokes lacks."""
        new: list[bytes] = []
        for some in batches(members, REVOKED_BATCH):
            scores = cast(
                "list[float | None]", self._runner.client.zmscore(self._keys.revoked, some)
            )
            found = zip(some, scores, strict=True)
            new += [member for member, revoked_at in found if revoked_at is None]
        return new

    def revoked(self, since_ms: int = 0) -> Revoked:
        """Return ids, stamps and canvases that were revoked since *since_ms*."""
        parts = [*self.revoked_members(since_ms)]
        members = [member for some, _ in parts for member in some]
        ids = [to_text(member[1:]) for member in members if member[:1] == b"i"]
        stamps = [stamp for member in members if (stamp := _stamp(member))]
        both = [member for member in members if member[:1] in (b"r", b"g")]
        canvases = [Canvas(to_text(member[:1]), to_text(member[1:])) for member in both]
        return Revoked(ids, stamps, canvases, parts[-1][1])

    def revoked_members(self, since_ms: int = 0) -> Iterator[tuple[list[bytes], int]]:
        """Yield parts of the set of revokes since *since_ms*: members, and the time of the last."""
        # Each part begins at the former part's last time: Redis walks over all skipped members.
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
    """Return ids, each with its required due time or None."""
    dues = if_due if isinstance(if_due, Sequence) else [if_due] * len(ids)
    return [*zip(ids, dues, strict=True)]


def _stamp(member: bytes) -> dict[str, Any]:
    """Return the revoked stamp of a member; empty for another member."""
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
    """Return an id, or the name of one message, which contains a NUL."""
    if isinstance(id, Name):
        return to_bytes(id if "\0" in id else f"{id}\0")
    return to_bytes(entry_id(id))


def _optional(value: Any) -> Any:
    return "" if value is None else value
