"""Renames and rewrites what waits: tasks in the schedule, dead letters and periodic entries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from celery_delayq.deadletters.reading import places_in_redis
from celery_delayq.errors import ConfigError, DelayQError, InvalidCursor, RecordError
from celery_delayq.integration.send_task import imported_tasks
from celery_delayq.model import envelope
from celery_delayq.model.changes.calls import (
    Rewrite,
    RewriteFailed,
    Rewriter,
    RewrittenCall,
    RewrittenMessage,
    WaitingCall,
    WaitingPlace,
    is_same,
)
from celery_delayq.model.changes.record import edited_record
from celery_delayq.model.compat import MessageChecker
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter, DeadLetterCursor
from celery_delayq.model.envelope import Record
from celery_delayq.model.names import check_name, filter_of
from celery_delayq.model.payload import json_form
from celery_delayq.model.scheduled import (
    OUTCOMES,
    Filter,
    Outcome,
    PlaceFields,
    moment,
    pack_cursor,
    unpack_cursor,
)
from celery_delayq.model.script_values import (
    EntryCondition,
    FoundPage,
    ListedEntry,
    Position,
    StatusCode,
    Swap,
)
from celery_delayq.periodic.client import PeriodicTasks, changed_entry, swap_entry
from celery_delayq.periodic.definition import API_SOURCE, Definition
from celery_delayq.periodic.places import queue_of
from celery_delayq.schedule.update import changes_of, editor_of
from celery_delayq.store.control import ControlStore
from celery_delayq.store.dead_letters import DeadLetterStore
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import counts_of, queues_of
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.utils import message_json
from celery_delayq.utils.delegation import names_arguments
from celery_delayq.utils.foreign import FOREIGN_ERRORS
from celery_delayq.utils.portions import batches, portions

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Entries that are read at once.
PAGE_ENTRIES = 500

#: Dead letters that one call changes.
DEAD_LETTER_BATCH = 40

#: Most failures that a report names.
MAX_FAILURES = 100

#: The places in the order in which they are looked at.
_PLACES: tuple[WaitingPlace, ...] = ("scheduled", "dead", "periodic")


class RewriteOutcome(NamedTuple):
    """What became of one message, or of one periodic entry.

    Attributes
    ----------
    place, queue, id : str
        Where it waits; the name is the id of a periodic entry, which has no queue.
    calls : Sequence[RewrittenCall]
        The changes of its calls.
    outcome : Outcome | None
        ``DONE``, also in a dry run; ``CHANGED`` if it was changed meanwhile, ``READY``, ``RUNNING``
        or ``UNKNOWN`` if it has left; ``CONFLICT`` if another task has its new unique key; None for
        a failure.
    problem : str
        Why it failed, or which part of it was not looked at; ``""`` for neither.
    """

    place: WaitingPlace
    queue: str
    id: str
    calls: Sequence[RewrittenCall]
    outcome: Outcome | None
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON types."""
        calls = [
            {
                "part": each.before.part,
                "task": each.before.task,
                "changes": {name: json_form(value) for name, value in each.changes.items()},
            }
            for each in self.calls
        ]
        return {
            "place": self.place,
            "queue": self.queue or None,
            "id": self.id,
            "outcome": "failed" if self.outcome is None else str(self.outcome),
            "problem": self.problem or None,
            "calls": calls,
        }


@dataclass(slots=True)
class RewriteReport:
    """Result of a rewrite, and its progress.

    Attributes
    ----------
    dry_run : bool
        Whether nothing is changed; *outcomes* then counts what would be.
    total : int | None
        Approximate number of messages and entries to look at; None if unknown.
    looked : int
        Number of messages and entries that were looked at.
    outcomes : Counter[Outcome]
        Number of those with changes, by outcome.
    undecoded : int
        Messages that the process cannot decode: the calls inside them were not looked at.
    unknown : int
        Messages that are unreadable, or of protocol 1: no name of a task was found in them.
    failed : int
        Number of those for which the function, or the change, raised an error. They are unchanged.
    failures : list[RewriteOutcome]
        The first 100 of them.
    pauses : list[str]
        Names of tasks that were paused, as their former names were.
    cursor : str | None
        Where the rewrite continues with ``resume=``; None at its end.
    """

    dry_run: bool
    total: int | None = None
    looked: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    undecoded: int = 0
    unknown: int = 0
    failed: int = 0
    failures: list[RewriteOutcome] = field(default_factory=list)
    pauses: list[str] = field(default_factory=list)
    cursor: str | None = None

    @property
    def done(self) -> int:
        """Number of changed messages and entries; in a dry run, of what would change."""
        return self.outcomes[Outcome.DONE]

    @property
    def is_complete(self) -> bool:
        """Whether all were looked at, also the calls inside them, and all changes were made."""
        is_done = self.outcomes.total() == self.done and not self.failed
        return self.cursor is None and is_done and not self.undecoded

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {
            "dry_run": self.dry_run,
            "total": self.total,
            "looked": self.looked,
            "outcomes": {str(outcome): number for outcome, number in self.outcomes.items()},
            "undecoded": self.undecoded,
            "unknown": self.unknown,
            "failed": self.failed,
            "failures": [each.as_dict() for each in self.failures],
            "pauses": self.pauses,
            "cursor": self.cursor,
        }

    def add(self, outcome: RewriteOutcome) -> None:
        """Count an outcome."""
        if outcome.outcome is not None:
            self.outcomes[outcome.outcome] += 1
            return
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(outcome)


class _Cursor(NamedTuple):
    """The place behind the last message that was looked at.

    *key* is its due time (ms), or the score of the dead letter in the index by time of death.
    *name* is that of the entry, the id of the dead letter, or the name of the periodic entry.
    *began* is the time at which the reading of the schedule began (µs).
    """

    place: WaitingPlace
    queue: str = ""
    key: float = 0
    name: str = ""
    began: int = 0

    def pack(self, what: str) -> str:
        """Return the cursor as a text that is valid for the same rewrite only."""
        # JSON has no infinite numbers, and a score may be one.
        key = repr(self.key + 0.0)
        return pack_cursor([what, self.place, self.queue, key, self.name, self.began])

    @classmethod
    def unpack(cls, text: Any, what: str) -> _Cursor:
        """Read what :meth:`pack` wrote (InvalidCursor)."""
        try:
            packed, place, queue, key, name, began = unpack_cursor(text)
            cursor = cls(place, str(queue), float(key), str(name), int(began))
            is_score = place == "dead" and not math.isnan(cursor.key)
            if place not in _PLACES or not (is_score or math.isfinite(cursor.key)):
                raise ValueError(place)
        except FOREIGN_ERRORS as exc:
            raise InvalidCursor(
                f"resume={text!r} is no cursor: give the cursor of an interrupted rewrite"
            ) from exc
        if packed != what:
            raise InvalidCursor(
                f"this cursor is that of {packed}, and not of {what}: resume the same rewrite"
            )
        return cursor


#: Called after each page.
Progress = Callable[[RewriteReport], object]


@names_arguments
def rename(
    session: Session,
    former: str,
    name: str,
    *,
    queue: str | None = None,
    dry_run: bool = False,
    unpickle: bool = False,
    resume: str | None = None,
    stop_on_error: bool = False,
    on_outcome: Callable[[RewriteOutcome], object] | None = None,
    progress: Progress | None = None,
) -> RewriteReport:
    """Rename a task in all that waits.

    The task of messages, with their unique keys, and that of all signatures inside messages. What
    is ready or running stays: workers with ``renamed=`` of ``DelayQ`` run it. If the former name is
    paused, the new name is paused too. Periodic entries in code stay: the code renames their tasks.

    Parameters
    ----------
    former, name : str
        The former name, and the new one.
    queue : str | None
        Only messages of this queue, and no pause: another app may have a task of the former name.
    dry_run, unpickle, resume, stop_on_error, on_outcome, progress
        As for :meth:`rewrite`.

    Raises
    ------
    InvalidFilter
        A name is empty or no text.
    ConfigError
        Both names are the same, one of them is None, or a module of the app cannot be imported.
    InvalidCursor
        *resume* is no cursor of this rename.
    """
    for field_name, value in (("former", former), ("name", name)):
        check_name(field_name, value)
        if value is None:
            raise ConfigError(f"{field_name}=None: expected the name of a task")
    if former == name:
        raise ConfigError(f"former={former!r} is the new name too: give two names")
    rewriter = partial(Rewriter, lambda _: {"task": name}, {former}, reads_arguments=False)
    run = _Run(
        session,
        rewriter,
        Filter(queue),
        f"rename {former!r} to {name!r}" + ("" if queue is None else f" in queue {queue!r}"),
        dry_run=dry_run,
        unpickle=unpickle,
        resume=resume,
        stop_on_error=stop_on_error,
        on_outcome=on_outcome,
        progress=progress,
    )
    paused = session.ask(lambda stores: stores.controls()).tasks
    if queue is None and former in paused and name not in paused:
        run.report.pauses.append(name)
        if not dry_run:
            token = uuid4().hex
            session.ask(lambda stores: stores.pause(None, name, token=token))
    return run.make()


@names_arguments
def rewrite(
    session: Session,
    /,
    function: Rewrite,
    filter: Filter | None = None,
    *,
    dry_run: bool = False,
    unpickle: bool = False,
    resume: str | None = None,
    stop_on_error: bool = False,
    on_outcome: Callable[[RewriteOutcome], object] | None = None,
    progress: Progress | None = None,
    **fields: Unpack[PlaceFields],
) -> RewriteReport:
    """Rewrite the calls that wait by a function.

    The function is called for each message that is scheduled or held, each dead letter, each
    periodic entry that is not in code, and each signature inside them: links of chains, members of
    groups, callbacks, errbacks, bodies of chords. A message is changed only if nobody has changed
    it since it was read. If the function fails for one of its calls, the message is not changed.

    An interrupted rewrite, and one that runs twice, may call the function for what it has changed
    already. So it must return None for calls that are right.

    Parameters
    ----------
    function : Callable[[WaitingCall], Mapping[str, Any] | None]
        Gets a call, and returns its changes by name or None: ``task``, ``args`` and ``kwargs``; for
        the call of a message also ``priority``, ``expires`` and ``headers``, as for ``update``.
    filter : Filter | None
        Only messages of its ``queue``, with its due times and its ``priority``. Dead letters and
        periodic entries have neither, and are left out with these. With a ``task``: only calls of
        this task or of its former names, also inside messages of other tasks. No ``arg``.
    dry_run : bool
        Call the function, and change nothing.
    unpickle : bool
        Decode pickled messages too, which may run code of whoever wrote them.
    resume : str | None
        The cursor of an interrupted rewrite.
    stop_on_error : bool
        Stop after the page with the first error. The cursor is before this page, so *resume* tries
        its calls again. Otherwise the error is reported, and the rewrite goes on.
    on_outcome : Callable[[RewriteOutcome], object] | None
        Called for each message with changes or an error.
    progress : Callable[[RewriteReport], object] | None
        Called after each page of at most 500 messages.
    **fields
        Fields of a :class:`~celery_delayq.model.scheduled.Filter`, in its place.

    Returns
    -------
    RewriteReport
        With a cursor if *stop_on_error* has stopped it.

    Raises
    ------
    InvalidFilter, InvalidETA
        A part of the filter is wrong, or both a filter and fields are given.
    InvalidCursor
        *resume* is no cursor of this rewrite.
    ConfigError
        *function* cannot be called, or a module of the app cannot be imported.
    """
    if not callable(function):
        raise ConfigError(f"function={function!r}: expected a function of a call")
    filter = filter_of(Filter, filter, fields, rewrite)
    filter.where()
    names = () if filter.task is None else session.renames.names(filter.task)
    what = getattr(function, "__qualname__", type(function).__name__)
    run = _Run(
        session,
        partial(Rewriter, function, names),
        filter,
        f"rewrite {what} with {filter!r}",
        dry_run=dry_run,
        unpickle=unpickle,
        resume=resume,
        stop_on_error=stop_on_error,
        on_outcome=on_outcome,
        progress=progress,
    )
    return run.make()


class _Run:
    """One rewrite of all that waits."""

    def __init__(
        self,
        session: Session,
        new_rewriter: Callable[..., Rewriter],
        filter: Filter,
        what: str,
        *,
        dry_run: bool,
        unpickle: bool,
        resume: str | None,
        stop_on_error: bool,
        on_outcome: Callable[[RewriteOutcome], object] | None,
        progress: Progress | None,
    ) -> None:
        self._begin = _Cursor("scheduled") if resume is None else _Cursor.unpack(resume, what)
        self.report = RewriteReport(dry_run)
        self._session = session
        app = session.app
        # As in `apply_async`, a task with `typing=False` takes any arguments.
        tasks = {name: task for name, task in imported_tasks(app).items() if task.typing}
        self._rewriter = new_rewriter(
            lambda changes: editor_of(app, changes_of(app, unpickle=unpickle, **changes)),
            MessageChecker(session.renames.with_former_names(tasks), ()),
            unpickle=unpickle,
        )
        self._filter = filter
        #: Whether the filter has conditions that only scheduled messages meet.
        self._is_schedule_only = filter != Filter(filter.queue, filter.task)
        self._what = what
        self._stop_on_error = stop_on_error
        self._on_outcome = on_outcome or (lambda _: None)
        self._progress = progress or (lambda _: None)

    def make(self) -> RewriteReport:
        """Make the rewrite, from the beginning or the cursor on."""
        walks: dict[WaitingPlace, Callable[[_Cursor], Iterator[_Cursor]]] = {
            "scheduled": self._scheduled,
            "dead": self._dead,
            "periodic": self._periodic,
        }
        begin = self._begin
        before = begin
        for place in _PLACES[_PLACES.index(begin.place) :]:
            start = begin if place == begin.place else _Cursor(place)
            for cursor in walks[place](start):
                is_stopped = self._stop_on_error and self.report.failed > 0
                # The page with the error is read again after the function was corrected.
                self.report.cursor = (before if is_stopped else cursor).pack(self._what)
                self._progress(self.report)
                if is_stopped:
                    return self.report
                before = cursor
        self.report.cursor = None
        return self.report

    # -- what is scheduled

    def _scheduled(self, cursor: _Cursor) -> Iterator[_Cursor]:
        """Rewrite the scheduled entries behind a cursor; yield the cursor behind each page."""
        # All tasks: a task of any name may call the task of the filter.
        where = self._filter.where()._replace(task=None)
        queue = self._filter.queue

        def ask(stores: Stores) -> tuple[Mapping[str, Layout], dict[str, int], int]:
            layouts = queues_of(stores, queue)
            return layouts, counts_of(stores, layouts, where), stores.began_us()

        layouts, counts, began = self._session.ask(ask)
        began = cursor.began or began
        self._count_total(sum(counts.values()))
        for name in sorted(queue for queue, number in counts.items() if number):
            if name >= cursor.queue:
                start = None
                if name == cursor.queue:
                    start = Position.of(int(cursor.key), cursor.name, None)
                yield from self._of_queue(name, layouts[name], where, start, began)

    def _of_queue(
        self,
        queue: str,
        layout: Layout,
        where: EntryCondition,
        start: Position | None,
        began: int,
    ) -> Iterator[_Cursor]:
        def read(stores: Stores) -> FoundPage:
            control = stores.of(queue).control
            return control.page(queue, where, PAGE_ENTRIES, start, began=began)

        while True:
            page = self._session.ask(read)
            where = where.due_by(page.last_due)
            self._rewrite_entries(queue, layout, page.entries)
            start = page.end
            if start is None:
                # Behind this queue, and before all others.
                yield _Cursor("scheduled", f"{queue}\0", began=began)
                return
            key, name = start.key_and_name
            yield _Cursor("scheduled", queue, key, name, began)

    def _rewrite_entries(self, queue: str, layout: Layout, entries: Sequence[ListedEntry]) -> None:
        found: list[tuple[RewriteOutcome, Swap]] = []
        for entry in entries:
            call = WaitingCall(task="", id=entry.id, queue=queue, due=moment(entry.due_ms))

            def edited(changed: RewrittenMessage, data: bytes = entry.record) -> bytes:
                return edited_record(data, changed.apply, layout.step_of)

            try:
                message = Record.unpack(entry.record).message
            except RecordError:
                message = b""
            if looked := self._look(message, call, edited):
                outcome, after = looked
                names = self._session.renames.all_names(Record.unpack(after).task)
                found.append((outcome, Swap(entry.name, entry.record, after, names=names)))
        self._swap(queue, found, attrgetter("control"))

    def _swap(
        self,
        queue: str,
        found: Sequence[tuple[RewriteOutcome, Swap]],
        part: Callable[[Store], ControlStore | DeadLetterStore],
    ) -> None:
        """Write what was found, by a part of the store, unless it is a dry run; note each."""
        codes: Sequence[StatusCode] = ["d"] * len(found)
        if found and not self.report.dry_run:
            swaps, token = [swap for _, swap in found], uuid4().hex
            codes = self._session.ask(
                lambda stores: part(stores.of(queue)).swap(queue, swaps, token)
            )
        self._note_all([outcome for outcome, _ in found], codes)

    # -- dead letters and periodic entries

    def _dead(self, cursor: _Cursor) -> Iterator[_Cursor]:
        """Rewrite the dead letters from a cursor on; yield the cursor behind each batch."""
        if self._is_schedule_only:
            return
        after = DeadLetterCursor()
        if cursor.queue:
            after = DeadLetterCursor(cursor.key, cursor.queue, cursor.name)
        places = places_in_redis(self._session.ask, DeadFilter(self._filter.queue), after)
        self._count_total(places.total or 0)
        for some in portions(
            places.found, DEAD_LETTER_BATCH, lambda place: len(place[1].dead_lettered.data)
        ):
            by_queue: dict[str, list[DeadLetter]] = {}
            for _, each in some:
                by_queue.setdefault(each.queue, []).append(each)
            for queue, its in by_queue.items():
                self._rewrite_dead_letters(queue, its)
            score, last = some[-1]
            yield _Cursor("dead", last.queue, score, last.id)

    def _rewrite_dead_letters(self, queue: str, dead_letters: Sequence[DeadLetter]) -> None:
        found: list[tuple[RewriteOutcome, Swap]] = []
        for each in dead_letters:
            before = each.dead_lettered
            call = WaitingCall(task="", id=each.id, queue=queue, place="dead")
            if looked := self._look(before.message, call, partial(_edited_message, before.message)):
                outcome, message = looked
                head = before.data[: len(before.data) - len(before.message)]
                found.append((outcome, Swap(each.id, before.data, head + message)))
        self._swap(queue, found, attrgetter("dead_letters"))

    def _periodic(self, cursor: _Cursor) -> Iterator[_Cursor]:
        """Rewrite the periodic entries that calls have added; yield the cursor behind each page."""
        if self._is_schedule_only:
            return
        filter, app = self._filter, self._session.app
        periodic = PeriodicTasks(self._session)
        entries = [
            each
            for each in periodic.list(API_SOURCE)
            if each.status != "ended"
            and each.name > cursor.name
            and filter.queue in (None, queue_of(app, each.definition))
        ]
        self._count_total(len(entries))
        for some in batches(entries, PAGE_ENTRIES):
            for each in some:
                self._rewrite_periodic(periodic, each.definition)
            yield _Cursor("periodic", name=some[-1].name)

    def _rewrite_periodic(self, periodic: PeriodicTasks, definition: Definition) -> None:
        self.report.looked += 1
        signature = definition.signature
        call = WaitingCall(task=definition.task, id=definition.name, place="periodic")
        outcome = RewriteOutcome("periodic", "", definition.name, (), None)
        try:
            new, calls = self._rewriter.rewritten_signature(signature, call)
            if not calls:
                return
            outcome = outcome._replace(calls=calls)
            changes = {name: new[name] for name in new if not is_same(new[name], signature[name])}
            changed = changed_entry(periodic, definition, changes)
            done = Outcome.DONE
            if not self.report.dry_run:
                done = swap_entry(periodic, definition, changed)
            self._note(outcome._replace(outcome=done))
        except (RewriteFailed, DelayQError) as exc:
            self._note(outcome._replace(problem=str(exc)))

    # -- each message

    def _look(
        self,
        data: bytes,
        call: WaitingCall,
        edited: Callable[[RewrittenMessage], bytes],
    ) -> tuple[RewriteOutcome, bytes] | None:
        """Return a message's changes and what :func:`edited` returns for them; None for none.

        A failure is reported.
        """
        self.report.looked += 1
        message = _task_message(data)
        if message is None:
            self.report.unknown += 1
            return None
        outcome = RewriteOutcome(call.place, call.queue, call.id, (), None)
        try:
            call = replace(call, task=message["headers"]["task"])
            changed = self._rewriter.rewritten(message, call)
            if changed is None:
                return None
            if changed.undecoded:
                self.report.undecoded += 1
            if not changed.calls:
                return None
            outcome = outcome._replace(calls=changed.calls, problem=changed.undecoded)
            return outcome._replace(outcome=Outcome.DONE), edited(changed)
        except (RewriteFailed, DelayQError) as exc:
            self._note(outcome._replace(problem=str(exc)))
        except Exception as exc:  # keys and models are code of the user
            self._note(outcome._replace(problem=f"{type(exc).__name__}: {exc}"))
        return None

    def _count_total(self, number: int) -> None:
        self.report.total = (self.report.total or 0) + number

    def _note_all(self, outcomes: Sequence[RewriteOutcome], codes: Sequence[Any]) -> None:
        for each, code in zip(outcomes, codes, strict=True):
            self._note(each._replace(outcome=OUTCOMES[code]))

    def _note(self, outcome: RewriteOutcome) -> None:
        self.report.add(outcome)
        self._on_outcome(outcome)


def _task_message(data: bytes) -> Any:
    """Return a decoded message of a task of protocol 2; None for other bytes."""
    try:
        message = message_json.decode(data)
        envelope.check_envelope(message)
    except RecordError:
        return None
    is_named = envelope.is_task(message) and isinstance(message["headers"]["task"], str)
    return message if is_named else None


def _edited_message(data: bytes, changed: RewrittenMessage) -> bytes:
    """Return the changed message of a dead letter."""
    message = message_json.decode(data)
    task, message_id = message["headers"]["task"], envelope.message_id_of(message)
    record = Record(0, message_id, task, data).pack()
    return Record.unpack(edited_record(record, changed.apply, lambda _: 0)).message
