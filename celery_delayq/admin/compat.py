"""Could the code of this process run what waits? Reads every message, and changes nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

from celery import Celery
from kombu.serialization import prepare_accept_content

from celery_delayq.deadletters.client import DeadLetters
from celery_delayq.deadletters.stream import StreamDeadLetters
from celery_delayq.errors import InvalidETA, InvalidFilter, RecordError, TransferError
from celery_delayq.integration.send_task import imported_tasks
from celery_delayq.model.compat import MessageChecker, Problem
from celery_delayq.model.compat.binding import Level, Verdict
from celery_delayq.model.compat.calls import Part
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Record, due_of_eta, own_of
from celery_delayq.model.names import check_name, renames_of
from celery_delayq.model.scheduled import Filter, moment
from celery_delayq.periodic.client import PeriodicTasks
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.places import queue_of
from celery_delayq.store.error_text import describe_error
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import counts_of, listed_pages, queues_of
from celery_delayq.store.scan import PAGE_MESSAGES
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.either_kind import reading
from celery_delayq.transfer.export_format import PAGE_ROWS, FileOrUrl, Header
from celery_delayq.utils import message_json
from celery_delayq.utils.delegation import names_arguments
from celery_delayq.utils.foreign import FOREIGN_ERRORS

#: Where a message waits. What a limit or a pause holds is scheduled.
Place = Literal["scheduled", "ready", "dead", "periodic"]

PLACES: tuple[Place, ...] = get_args(Place)

#: Most ids of a row.
MAX_EXAMPLES = 5

#: Most rows. Further problems are counted in one row for each verdict.
MAX_ROWS = 1000

#: Most refused lines of a file that a report names.
MAX_REFUSED_LINES = 100

#: Messages after which the progress is reported.
PROGRESS_MESSAGES = 500

#: The queues to look at; None for all.
Queues = Set[str] | None

_LEVELS: tuple[Level, ...] = ("fails", "unknown", "binds")


class _Waiting(NamedTuple):
    """A message that waits, or the reason why it cannot be read."""

    place: Place
    id: str
    due_ms: int | None
    problems: list[Problem]


@dataclass
class CompatRow:
    """The messages with one problem.

    Attributes
    ----------
    problem : Problem
        The task, the part of the message that calls the task, the verdict, and details.
    places : Counter[Place]
        Number of messages by the place where they wait.
    first_due, last_due : int | None
        The first and last known due time, in ms since 1970.
    ids : list[str]
        Up to five ids.
    """

    problem: Problem
    places: Counter[Place] = field(default_factory=Counter)
    first_due: int | None = None
    last_due: int | None = None
    ids: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.places.total()

    def add(self, waiting: _Waiting) -> None:
        """Count a message."""
        self.places[waiting.place] += 1
        if len(self.ids) < MAX_EXAMPLES:
            self.ids.append(waiting.id)
        if waiting.due_ms is not None:
            known = [each for each in (self.first_due, self.last_due) if each is not None]
            self.first_due = min([waiting.due_ms, *known])
            self.last_due = max([waiting.due_ms, *known])

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON types, times in UTC."""
        return {
            "task": self.problem.task,
            "part": self.problem.part.value,
            "level": self.problem.verdict.level,
            "problem": self.problem.verdict.value,
            "detail": self.problem.detail,
            "count": self.count,
            "places": dict(self.places),
            "first_due": _iso(self.first_due),
            "last_due": _iso(self.last_due),
            "ids": self.ids,
        }


@dataclass
class CompatReport:
    """What the code could run, also during the check.

    A message is counted at its worst: ``fails`` before ``unknown`` before ``binds``. In the rows, a
    message is counted once for each of its problems.

    Attributes
    ----------
    total : int | None
        Approximate number of messages; None if unknown.
    looked : Counter[Place]
        Number of messages by the place where they wait.
    binds, fails, unknown : int
        Messages that the code takes, that would fail, and of which nobody can tell.
    replaced : int
        Periodic entries of the code that would fail as they are, and that the first worker of this
        code replaces or removes. They are counted as what it makes of them: ``binds`` if it removes
        them.
    not_looked : tuple[Place, ...]
        Places that the broker does not let anybody read.
    refused : int
        Lines of a file that cannot be read.
    refusals : list[tuple[int, str]]
        The first 100 of them: line and reason.
    """

    total: int | None = None
    looked: Counter[Place] = field(default_factory=Counter)
    binds: int = 0
    fails: int = 0
    unknown: int = 0
    replaced: int = 0
    not_looked: tuple[Place, ...] = ()
    refused: int = 0
    refusals: list[tuple[int, str]] = field(default_factory=list)
    _rows: dict[Problem, CompatRow] = field(default_factory=dict, repr=False)

    @property
    def number(self) -> int:
        """Number of messages that were looked at."""
        return self.looked.total()

    @property
    def rows(self) -> list[CompatRow]:
        """The problems: first those that fail, then by number of messages."""
        return sorted(
            self._rows.values(),
            key=lambda row: (
                _LEVELS.index(row.problem.verdict.level),
                -row.count,
                row.problem.task,
            ),
        )

    def add(self, waiting: _Waiting) -> None:
        """Count a message."""
        self.looked[waiting.place] += 1
        levels = {problem.verdict.level for problem in waiting.problems}
        worst = next((level for level in _LEVELS if level in levels), "binds")
        setattr(self, worst, getattr(self, worst) + 1)
        for row in {self._row(problem).problem for problem in waiting.problems}:
            self._rows[row].add(waiting)

    def _row(self, problem: Problem) -> CompatRow:
        if problem not in self._rows and len(self._rows) >= MAX_ROWS:
            problem = Problem("…", Part.MESSAGE, problem.verdict, "further problems")
        return self._rows.setdefault(problem, CompatRow(problem))

    def refuse(self, line: int, reason: str) -> None:
        """Count a line of a file that cannot be read."""
        self.refused += 1
        if len(self.refusals) < MAX_REFUSED_LINES:
            self.refusals.append((line, reason))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON types, times in UTC."""
        return {
            "looked": {place: self.looked[place] for place in PLACES},
            "binds": self.binds,
            "fails": self.fails,
            "unknown": self.unknown,
            "replaced": self.replaced,
            "not_looked": [*self.not_looked],
            "refused": self.refused,
            "refusals": [{"line": line, "reason": reason} for line, reason in self.refusals],
            "problems": [row.as_dict() for row in self.rows],
        }


#: Called during a check.
Progress = Callable[[CompatReport], object]


@names_arguments
def compat(
    session: Session,
    source: FileOrUrl | None = None,
    *,
    queue: str | Sequence[str] | None = None,
    place: Place | Sequence[Place] | None = None,
    unpickle: bool = False,
    progress: Progress | None = None,
) -> CompatReport:
    """Check whether the code of this process could run each message that waits.

    Messages that are scheduled, held or ready, dead letters and periodic entries are read, with the
    signatures inside them: chains, callbacks, errbacks, chords. Is the task registered, does it
    take the arguments, is the content type accepted? No task is called, and nothing is changed.
    An entry of ``beat_schedule`` that this code replaces or removes when its first worker starts is
    checked as this code has it.

    Parameters
    ----------
    source : str | PathLike | BinaryIO | None
        An export of the schedule or of dead letters, as in
        :meth:`~celery_delayq.DelayQ.import_from`. None for the broker.
    queue : str | Sequence[str] | None
        Only this queue, or these queues. Several apps may share a broker.
    place : str | Sequence[str] | None
        Only what waits here: ``"scheduled"``, ``"ready"``, ``"dead"``, ``"periodic"``, or several
        of them.
    unpickle : bool
        Also decode pickle, signed messages, and content of serializers that are not kombu's own.
        That may run code of whoever wrote the message.
    progress : Callable[[CompatReport], object] | None
        Called after each 500 messages.

    Returns
    -------
    CompatReport
        With RabbitMQ, only dead letters were looked at.

    Raises
    ------
    ConfigError
        A module of the app cannot be imported, or ``renamed`` of ``DelayQ`` contradicts its tasks.
    InvalidFilter
        *queue* is no name, and no names, or there is no such *place*.
    TransferError
        The export cannot be read.
    """
    app = session.app
    if isinstance(queue, str):
        queue = [queue]
    queues = None if queue is None else {*queue}
    for name in queues or ():
        check_name("queue", name)
    places = _places_of(place)
    checker = _checker_of(app, unpickle=unpickle)
    report = CompatReport()
    if source is not None:
        waiting = _in_file(source, checker, queues, places, report)
    elif session.on_rabbitmq:
        report.not_looked = tuple(each for each in places if each in ("scheduled", "ready"))
        waiting = _dead_letters(session, checker, queues) if "dead" in places else iter(())
    else:
        waiting = _in_redis(session, checker, queues, places, report)
    for number, each in enumerate(waiting, 1):
        report.add(each)
        if progress is not None and number % PROGRESS_MESSAGES == 0:
            progress(report)
    return report


def _places_of(given: Any) -> Sequence[Place]:
    """Return the places to look at; all of them if none is given."""
    names = [given] if isinstance(given, str) else [*(given or PLACES)]
    for each in names:
        if each not in PLACES:
            raise InvalidFilter(f"place={each!r}: expected one of {', '.join(PLACES)}")
    return [each for each in PLACES if each in names]


def _checker_of(app: Celery, *, unpickle: bool) -> MessageChecker:
    tasks = imported_tasks(app)
    renames = renames_of(app)
    renames.check_tasks(tasks)
    accept = prepare_accept_content(app.conf.accept_content or ())
    return MessageChecker(renames.with_former_names(tasks), accept, unpickle=unpickle)


def _in_redis(
    session: Session,
    checker: MessageChecker,
    names: Queues,
    places: Sequence[Place],
    report: CompatReport,
) -> Iterator[_Waiting]:
    where = Filter().where()

    def ask(stores: Stores) -> tuple[dict[str, Layout], dict[str, int], int]:
        found: dict[str, Layout] = {}
        for name in names or (None,):
            found.update(queues_of(stores, name))
        if names is None:  # queues that no worker has registered yet
            for name in session.app.amqp.queues:
                found.setdefault(name, stores.of(name).layout)
        return found, counts_of(stores, found, where), stores.began_us()

    queues, counts, began = session.ask(ask)
    if "scheduled" in places:
        report.total = sum(counts.values())
    for name in queues if "scheduled" in places else ():
        if counts[name]:
            for page in listed_pages(session.ask, name, where, PAGE_ROWS, began=began):
                for each in page.entries:
                    yield _scheduled(checker, each.id, each.due_ms, each.record)
    # Behind all scheduled ones: what becomes ready meanwhile is found here.
    if "ready" in places:
        for name in session.ask(lambda stores: _with_ready(stores, queues)):
            yield from _ready(session, checker, name, queues[name])
    if "dead" in places:
        yield from _dead_letters(session, checker, names)
    if "periodic" in places:
        yield from _periodic(session, checker, names, report)


def _scheduled(checker: MessageChecker, id: str, due_ms: int, record: bytes) -> _Waiting:
    try:
        message = Record.unpack(record).message
    except RecordError as exc:
        problem = Problem("?", Part.MESSAGE, Verdict.UNREADABLE, str(exc))
        return _Waiting("scheduled", id, due_ms, [problem])
    return _Waiting("scheduled", id, due_ms, checker.message_problems(_decoded(message)))


def _with_ready(stores: Stores, queues: Mapping[str, Layout]) -> list[str]:
    """Return the queues with ready or quarantined messages."""
    sizes = stores.run_each(
        queues, lambda store, name: store.gauges.sizes_steps(name, queues[name])
    )
    return [name for name, size in sizes.items() if size.ready]


def _ready(
    session: Session, checker: MessageChecker, queue: str, layout: Layout
) -> Iterator[_Waiting]:
    """Yield the ready messages of a queue. Workers may take some meanwhile."""

    def run(call: Call) -> Any:
        return session.ask(lambda stores: stores.of(queue).run(call))

    store = session.ask(lambda stores: stores.of(queue))
    lists = [store.keys.ready(queue, step, layout) for step in layout.steps]
    quarantined = store.keys.queue(queue).quarantined
    for name in (quarantined, *lists):
        pages = store.scan.messages(name, 0, sys.maxsize, PAGE_MESSAGES, newest=True, run=run)
        for data in chain.from_iterable(pages):
            message = _decoded(split_leased(data)[1] if name == quarantined else data)
            yield _Waiting("ready", *_id_and_due(message), checker.message_problems(message))


def _dead_letters(session: Session, checker: MessageChecker, queues: Queues) -> Iterator[_Waiting]:
    kind = StreamDeadLetters if session.on_rabbitmq else DeadLetters
    # A stream is read as a whole for any queue.
    one_by_one = queues is not None and not session.on_rabbitmq
    for name in sorted(queues or ()) if one_by_one else (None,):
        for each in kind(session)(queue=name):
            if queues is None or each.queue in queues:
                yield _dead(checker, each)


def _dead(checker: MessageChecker, dead_letter: DeadLetter) -> _Waiting:
    record = dead_letter.dead_lettered
    problems = checker.message_problems(_decoded(record.message))
    return _Waiting("dead", dead_letter.id, record.due_ms or None, problems)


def _periodic(
    session: Session, checker: MessageChecker, queues: Queues, report: CompatReport
) -> Iterator[_Waiting]:
    periodic, code = PeriodicTasks(session), Deployment(session.app)
    kept = session.ask(code.kept_names)
    for unreadable in periodic.unreadable():
        reason = type(unreadable.error).__name__
        problem = Problem("?", Part.MESSAGE, Verdict.UNREADABLE, reason)
        yield _Waiting("periodic", unreadable.name, None, [problem])
    for each in periodic.list():
        its = each.definition
        if each.status != "ended" and (queues is None or queue_of(session.app, its) in queues):
            problems = checker.signature_problems(its.signature)
            if kept is not None and its.source == code.source and each.name not in kept:
                # The first worker of this code writes its own entry, or removes this one.
                report.replaced += any(one.verdict.level == "fails" for one in problems)
                new = code.definitions.get(each.name)
                problems = [] if new is None else checker.signature_problems(new.signature)
            yield _Waiting("periodic", each.name, each.state.next_tick, problems)


def _in_file(
    source: FileOrUrl,
    checker: MessageChecker,
    queues: Queues,
    places: Sequence[Place],
    report: CompatReport,
) -> Iterator[_Waiting]:
    try:
        with reading(source) as lines:
            for number, parsed in lines:
                if isinstance(parsed, Header):
                    if type(parsed.about) is int:
                        report.total = (report.total or 0) + parsed.about
                elif isinstance(parsed, str):
                    report.refuse(number, parsed)
                elif queues is not None and parsed.queue not in queues:
                    continue
                elif isinstance(parsed, DeadLetterRow):
                    if "dead" in places:
                        yield _dead(checker, parsed.dead_letter)
                elif "scheduled" in places:
                    problems = checker.message_problems(_decoded(parsed.record().message))
                    yield _Waiting("scheduled", parsed.id, parsed.due_ms, problems)
    except OSError as exc:
        raise TransferError(describe_error(exc)) from exc


def _decoded(data: bytes) -> Any:
    """Return a message; None if it is no JSON."""
    try:
        return message_json.decode(data)
    except RecordError:
        return None


def _id_and_due(message: Any) -> tuple[str, int | None]:
    """Return the id of the task of a message, and when it was due."""
    id = "?"
    try:
        id = str(message["headers"]["id"])
        return id, due_of_eta(own_of(message["properties"])["eta"]).ms
    except (InvalidETA, *FOREIGN_ERRORS):
        return id, None


def _iso(ms: int | None) -> str | None:
    return None if ms is None else moment(ms).isoformat(timespec="milliseconds")
