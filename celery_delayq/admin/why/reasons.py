"""Why a task has not run, or how it ended: reasons as data and as sentences. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from celery_delayq.errors import InvalidETA
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.history import Run
from celery_delayq.model.scheduled import ScheduledTask, moment
from celery_delayq.settings import Limits
from celery_delayq.store.waits import LaneWaits, Waits
from celery_delayq.utils.text import span, spelled

#: Seconds without a look of a dispatcher from which this is a reason.
NO_DISPATCHER_SECONDS = 5.0

#: By how much a lease may be longer than the setting: ``leases/acquire.lua`` adds a hundredth.
LONGEST_LEASE = 1.02

#: Returns a time as a text.
Stamp = Callable[[datetime], str]


class ReasonKind(str, Enum):
    """A reason why a task has not run yet, does not run, or does not run again.

    Attributes
    ----------
    NOT_DUE
        The task is due later.
    OVERDUE
        The task is due, and a dispatcher has still to promote it.
    RETRY
        The task is a retry of its earlier attempts.
    QUEUE_PAUSED, TASK_PAUSED
        The queue or the name of the task is paused.
    RESUMED
        The name of the task was paused. A dispatcher has still to move the task back.
    LIMIT
        A limit holds the task.
    PARENT_HAS_PERMIT
        A task above this one has a permit of the limit that holds this one. If it waits for this
        task, neither ends.
    MAX_READY, PROMOTE_RATE
        These settings hold up the promotion of due tasks.
    NO_DISPATCHER
        No dispatcher has looked at the schedule for some time.
    READY
        The task waits for a free worker.
    NO_CONSUMER
        No worker is known that takes tasks of the queue.
    QUARANTINED
        Workers died with the task, so it is delivered alone.
    LEASED
        A worker has the task.
    LEASE_ENDED
        A worker had the task and does not extend its lease.
    REVOKED, EXPIRED, CANCELLED
        The task does not run. If a worker has it, a run that has begun goes on.
    DEAD
        The task is a dead letter.
    ENDED
        The task has run, or was ended without a run.
    UNKNOWN
        Nothing is known of the id.
    """

    NOT_DUE = "not_due"
    OVERDUE = "overdue"
    RETRY = "retry"
    QUEUE_PAUSED = "queue_paused"
    TASK_PAUSED = "task_paused"
    RESUMED = "resumed"
    LIMIT = "limit"
    PARENT_HAS_PERMIT = "parent_has_permit"
    MAX_READY = "max_ready"
    PROMOTE_RATE = "promote_rate"
    NO_DISPATCHER = "no_dispatcher"
    READY = "ready"
    NO_CONSUMER = "no_consumer"
    QUARANTINED = "quarantined"
    LEASED = "leased"
    LEASE_ENDED = "lease_ended"
    REVOKED = "revoked"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DEAD = "dead"
    ENDED = "ended"
    UNKNOWN = "unknown"
    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason.

    Attributes
    ----------
    kind : ReasonKind
        What kind of reason it is.
    values : Mapping[str, Any]
        What is known of it. Times are aware datetimes in UTC, durations are in seconds.
    """

    kind: ReasonKind
    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The reason in plain words, with times in UTC."""
        return self.sentence(datetime.isoformat)

    def sentence(self, stamp: Stamp) -> str:
        """Return the reason in plain words, with times as *stamp* returns them."""
        values = {name: _shown(value, stamp) for name, value in self.values.items()}
        return _SENTENCES[self.kind](values)

    def as_dict(self) -> dict[str, Any]:
        """Return kind, text and values as JSON types."""
        values = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in self.values.items()
        }
        return {"kind": str(self.kind), "text": self.text, **values}


@dataclass(frozen=True, slots=True)
class Why:
    """The answer of ``delayq.why(id)``.

    Attributes
    ----------
    id : str
        The id of the task.
    state : str
        A state of a :class:`~celery_delayq.model.scheduled.ScheduledTask`, or ``"cancelled"``,
        ``"revoked"``, ``"dead"``, ``"ended"`` or ``"unknown"``.
    task, queue : str | None
        The name of the task and its queue; None if unknown.
    due : datetime | None
        When the task is or was due, in UTC; None if unknown.
    reasons : Sequence[Reason]
        The reasons; the first one counts most.
    others : Sequence[Why]
        The answers for further entries with this id: of a task that was routed to two queues.
    """

    id: str
    state: str
    task: str | None
    queue: str | None
    due: datetime | None
    reasons: Sequence[Reason]
    others: Sequence[Why] = ()

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the id."""
        return self.state != "unknown"

    @property
    def text(self) -> str:
        """The answer in plain words, a line for each reason, with times in UTC."""
        return "\n".join(reason.text for each in (self, *self.others) for reason in each.reasons)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON types."""
        return {
            "id": self.id,
            "state": self.state,
            "task": self.task,
            "queue": self.queue,
            "due": None if self.due is None else self.due.isoformat(),
            "reasons": [each.as_dict() for each in self.reasons],
            "others": [each.as_dict() for each in self.others],
        }


class EntryFacts(NamedTuple):
    """What is known of an entry.

    Attributes
    ----------
    entry : ScheduledTask
        The entry.
    due_ms : int
        When the entry is due, in ms since 1970; 0 or 1 if unknown.
    waits : Waits
        What the entry may wait for.
    limits : Limits
        The limits of its queue.
    lease_seconds : float
        The duration of a lease by the settings of this app.
    consumers : Sequence[str] | None
        The workers that answered that they consume the queue; None if nobody has asked.
    """

    entry: ScheduledTask
    due_ms: int
    waits: Waits
    limits: Limits = Limits()
    lease_seconds: float = 30.0
    consumers: Sequence[str] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the entry is due."""
        return self.due_ms <= self.waits.now_ms

    @property
    def is_held_back(self) -> bool:
        """Whether a pause, or a lane that may not go, keeps workers from taking the entry."""
        its = self.waits
        is_paused = its.queue_paused_ms is not None or its.task_paused_ms is not None
        next_ms = None if its.lane is None else its.lane.next_ms
        return is_paused or (next_ms is not None and next_ms > its.now_ms)

    @property
    def waits_for_worker(self) -> bool:
        """Whether nothing but a free worker is missing, and no process is known to take tasks of
        the queue.
        """
        may_be_taken = self.entry.state in ("ready", "held") and not self.is_held_back
        return may_be_taken and not self.waits.has_lease


class GoneFacts(NamedTuple):
    """What is known of an id without an entry.

    Attributes
    ----------
    id : str
        The id.
    dead_letters : Sequence[DeadLetter]
        Its dead letters.
    cancelled : Sequence[tuple[str, str]]
        Queue and name of its task, for each cancelled message that is still there.
    revoked_ms : int | None
        When the id was revoked, in ms since 1970.
    runs : Sequence[Run]
        Its runs in the history, the newest first.
    searched : int
        The number of runs in the history, none of which is its run; 0 if that does not matter.
    keeps_history : bool
        Whether the app has a history of runs.
    """

    id: str
    dead_letters: Sequence[DeadLetter] = ()
    cancelled: Sequence[tuple[str, str]] = ()
    revoked_ms: int | None = None
    runs: Sequence[Run] = ()
    searched: int = 0
    keeps_history: bool = False


def why_waiting(facts: EntryFacts) -> Why:
    """Return the answer for an entry."""
    entry, its = facts.entry, facts.waits
    reasons = [*_pauses(facts), *_in_state(facts)]
    # A task that a worker has may run already, so its lease is the first reason.
    reasons = reasons + _stops(facts) if entry.state == "running" else _stops(facts) + reasons
    if facts.entry.state == "scheduled" and not facts.is_due:
        reasons.sort(key=lambda each: each.kind is not ReasonKind.NOT_DUE)
    if _needs_dispatcher(entry, reasons) and _is_absent(its):
        seconds = None if its.looked_ms is None else (its.now_ms - its.looked_ms) / 1000
        reasons.append(Reason(ReasonKind.NO_DISPATCHER, {"seconds": seconds}))
    retries = entry.headers.get("retries")
    if isinstance(retries, int) and retries > 0:
        reasons.append(Reason(ReasonKind.RETRY, {"retries": retries}))
    due = entry.due if facts.due_ms > 1 else None
    return Why(entry.id, entry.state, entry.task, entry.queue, due, tuple(reasons))


def why_gone(facts: GoneFacts) -> Why:
    """Return the answer for an id without an entry."""
    id, reasons = facts.id, list[Reason]()
    state, task, queue, due = "unknown", None, None, None
    if facts.revoked_ms is not None:
        state = "revoked"
        reasons.append(Reason(ReasonKind.REVOKED, {"since": moment(facts.revoked_ms)}))
    if facts.runs:
        run = facts.runs[0]
        state, task, queue, due = "ended", run.task, run.queue, run.due
        names = ("started", "ended", "worker", "state", "reason", "retries")
        values = {name: getattr(run, name) for name in names}
        reasons.insert(0, Reason(ReasonKind.ENDED, values))
    if facts.cancelled:
        state, (queue, task) = "cancelled", facts.cancelled[0]
        reasons.insert(0, Reason(ReasonKind.CANCELLED, {}))
    for dead_letter in facts.dead_letters:
        state, due = "dead", dead_letter.due
        task, queue = dead_letter.task, dead_letter.queue
        values = {"since": dead_letter.died, "reason": dead_letter.reason}
        reasons.insert(0, Reason(ReasonKind.DEAD, values))
    if not reasons:
        values = {"searched": facts.searched, "keeps_history": facts.keeps_history}
        reasons.append(Reason(ReasonKind.UNKNOWN, values))
    return Why(id, state, task, queue, due, tuple(reasons))


def _stops(facts: EntryFacts) -> list[Reason]:
    """Return the reasons why an entry never runs, or does not run again."""
    reasons, its = list[Reason](), facts.waits
    leased = {"leased": True} if facts.entry.state == "running" else {}
    if its.revoked_ms is not None:
        reasons.append(Reason(ReasonKind.REVOKED, {"since": moment(its.revoked_ms), **leased}))
    expires = facts.entry.headers.get("expires")
    try:
        expires_ms = None if expires is None else due_of_eta(expires).ms
    except InvalidETA:
        expires_ms = None
    if expires_ms is not None and expires_ms <= max(facts.due_ms, its.now_ms):
        reasons.append(Reason(ReasonKind.EXPIRED, {"at": moment(expires_ms), **leased}))
    return reasons


def _pauses(facts: EntryFacts) -> list[Reason]:
    """Return the pauses that hold an entry."""
    entry, its, reasons = facts.entry, facts.waits, list[Reason]()
    if entry.state == "running":
        return reasons
    if its.queue_paused_ms is not None:
        values = {"queue": entry.queue, "since": moment(its.queue_paused_ms)}
        reasons.append(Reason(ReasonKind.QUEUE_PAUSED, values))
    if its.task_paused_ms is not None:
        values = {"task": entry.task, "since": moment(its.task_paused_ms)}
        reasons.append(Reason(ReasonKind.TASK_PAUSED, values))
    return reasons


def _in_state(facts: EntryFacts) -> list[Reason]:
    """Return what an entry waits for in its state, beside pauses."""
    its = facts.waits
    match facts.entry.state:
        case "running":
            return [_lease(facts)]
        case "ready":
            return _ready(facts)
        case "held" if its.lane is not None:
            return [*_lane(facts, its.lane), *_missing_worker(facts)]
        case "paused" if its.task_paused_ms is None:
            return [Reason(ReasonKind.RESUMED, {"task": facts.entry.task})]
        case "scheduled" if not facts.is_due:
            seconds = (facts.due_ms - its.now_ms) / 1000
            return [Reason(ReasonKind.NOT_DUE, {"due": facts.entry.due, "seconds": seconds})]
        case "scheduled" if not facts.is_held_back:
            return _promotion(facts)
    return []


def _promotion(facts: EntryFacts) -> list[Reason]:
    """Return what holds up the promotion of a due entry."""
    its, limits, reasons = facts.waits, facts.limits, list[Reason]()
    values: dict[str, Any]
    if limits.max_ready and its.ready >= limits.max_ready:
        values = {"ready": its.ready, "max_ready": limits.max_ready}
        reasons.append(Reason(ReasonKind.MAX_READY, values))
    if limits.promote_rate:
        values = {"promote_rate": limits.promote_rate}
        reasons.append(Reason(ReasonKind.PROMOTE_RATE, values))
    seconds = (its.now_ms - facts.due_ms) / 1000
    values = {"due": facts.entry.due, "seconds": seconds, "ahead": its.due_before}
    reasons.append(Reason(ReasonKind.OVERDUE, values))
    return reasons


def _lane(facts: EntryFacts, lane: LaneWaits) -> list[Reason]:
    """Return how a limit holds an entry."""
    entry, definition = facts.entry, lane.limit.definition
    next_ms = lane.next_ms
    values = {
        "limit": entry.limit,
        "key": entry.limit_key or None,
        "ahead": lane.ahead,
        "used": lane.used,
        "concurrency": (definition and definition.concurrency) or None,
        "rate": definition and definition.rate,
        "may_go": next_ms is not None and next_ms <= facts.waits.now_ms,
        "next": None if next_ms is None or math.isinf(next_ms) else moment(int(next_ms)),
    }
    reasons = [Reason(ReasonKind.LIMIT, values)]
    above = (str(entry.headers.get(name)) for name in ("parent_id", "root_id"))
    parent = next((id for id in above if id != entry.id and id in lane.permit_ids), None)
    if parent is not None:
        values = {"parent": parent, "limit": entry.limit}
        reasons.append(Reason(ReasonKind.PARENT_HAS_PERMIT, values))
    return reasons


def _ready(facts: EntryFacts) -> list[Reason]:
    """Return what a ready entry waits for."""
    its, reasons = facts.waits, list[Reason]()
    if its.quarantined_deaths is not None:
        reasons.append(Reason(ReasonKind.QUARANTINED, {"deaths": its.quarantined_deaths}))
    else:
        reasons.append(Reason(ReasonKind.READY, {"ahead": max(0, its.ready - 1)}))
    return [*_missing_worker(facts), *reasons]


def _missing_worker(facts: EntryFacts) -> list[Reason]:
    if facts.waits_for_worker and facts.consumers is not None and not facts.consumers:
        return [Reason(ReasonKind.NO_CONSUMER, {"queue": facts.entry.queue})]
    return []


def _lease(facts: EntryFacts) -> Reason:
    """Return how a worker has an entry."""
    its, worker = facts.waits, facts.entry.worker
    if its.lease_ends_ms is None:
        return Reason(ReasonKind.LEASED, {"worker": worker, "extended": None, "ends": None})
    ends = (its.lease_ends_ms - its.lease_now_ms) / 1000
    if ends <= 0:
        return Reason(ReasonKind.LEASE_ENDED, {"worker": worker, "seconds": -ends})
    extended = None
    if ends <= facts.lease_seconds * LONGEST_LEASE:  # else workers have another setting
        extended = max(0.0, facts.lease_seconds - ends)
    return Reason(ReasonKind.LEASED, {"worker": worker, "extended": extended, "ends": ends})


def _needs_dispatcher(entry: ScheduledTask, reasons: Sequence[Reason]) -> bool:
    is_lost = any(each.kind is ReasonKind.LEASE_ENDED for each in reasons)
    return entry.state in ("scheduled", "paused") or is_lost


def _is_absent(waits: Waits) -> bool:
    """Return whether no dispatcher has looked for some time."""
    looked_ms = waits.looked_ms
    return looked_ms is None or waits.now_ms - looked_ms > NO_DISPATCHER_SECONDS * 1000


# -- sentences


def _shown(value: Any, stamp: Stamp) -> Any:
    """Return a value as sentences show it."""
    if isinstance(value, datetime):
        return stamp(value)
    return spelled(value) if isinstance(value, str) else value


def _limit(values: Mapping[str, Any]) -> str:
    key = f" of key {values['key']}" if values["key"] else ""
    ahead = f"none{key} is ahead"
    if values["ahead"]:
        ahead = f"at most {values['ahead']:,}{key} are ahead"
    text = f"Limit {values['limit']} holds it: {ahead}."
    if values["may_go"]:
        return f"{text} The next one may go: it waits for a worker with a free process."
    if values["concurrency"] and values["next"] is None:
        used, most = values["used"], values["concurrency"]
        return f"{text} Workers have {used:,} of at most {most:,} at once."
    if values["next"]:
        rate = f" by its rate of {values['rate']}" if values["rate"] else ""
        return f"{text} The next one may go at {values['next']}{rate}."
    return text


def _overdue(values: Mapping[str, Any]) -> str:
    text = f"It has been due for {span(values['seconds'])}, since {values['due']}"
    ahead = values["ahead"]
    before = f"{ahead:,} {'entry is' if ahead == 1 else 'entries are'}"
    return f"{text}, and is not promoted yet: at most {before} due before it."


def _leased(values: Mapping[str, Any]) -> str:
    text = f"Worker {values['worker']} has it, and runs it or is about to."
    if values["ends"] is None:
        return text
    if values["extended"] is None:
        return f"{text} Its lease ends in {span(values['ends'])}."
    ago, ends = span(values["extended"]), span(values["ends"])
    return f"{text} Its lease was extended {ago} ago and ends in {ends}."


def _ended(values: Mapping[str, Any]) -> str:
    why = f", {values['reason']}" if values["reason"] else ""
    if values["started"] is None:
        return f"It was ended at {values['ended']} before its run: {values['state']}{why}"
    text = f"It ran from {values['started']} to {values['ended']} on {values['worker']}"
    return f"{text}: {values['state']}{why}"


def _never_runs(values: Mapping[str, Any]) -> str:
    if values.get("leased"):
        return "a run that has begun goes on, and no worker begins another one."
    return "no worker runs it."


#: What to do if no dispatcher runs.
_START = "start a worker, which has one, or `delayq dispatch`"


def _no_dispatcher(values: Mapping[str, Any]) -> str:
    if values["seconds"] is None:
        return f"No dispatcher has looked yet: {_START}."
    since = span(values["seconds"])
    return f"No dispatcher has looked for {since}: {_START}."


def _unknown(values: Mapping[str, Any]) -> str:
    text = (
        "Nothing is known of it: it has finished, was cancelled, has no ETA, waits inside a chain "
        "or another canvas, or never was."
    )
    if values["searched"]:
        return f"{text} The last {values['searched']:,} runs in the history are of other tasks."
    if values["keeps_history"]:
        return f"{text} The history has no run yet."
    return f"{text} No history of runs is kept."


_SENTENCES: Mapping[ReasonKind, Callable[[Mapping[str, Any]], str]] = {
    ReasonKind.NOT_DUE: lambda v: f"It is due at {v['due']}, in {span(v['seconds'])}.",
    ReasonKind.OVERDUE: _overdue,
    ReasonKind.RETRY: lambda v: f"It is retry {v['retries']:,} of its task.",
    ReasonKind.QUEUE_PAUSED: lambda v: (
        f"Its queue {v['queue']} has been paused since {v['since']}."
    ),
    ReasonKind.TASK_PAUSED: lambda v: f"Its task {v['task']} has been paused since {v['since']}.",
    ReasonKind.RESUMED: lambda v: (
        f"Its task {v['task']} was paused and is resumed: a dispatcher moves it back."
    ),
    ReasonKind.LIMIT: _limit,
    ReasonKind.PARENT_HAS_PERMIT: lambda v: (
        f"Task {v['parent']} above it runs under the same limit {v['limit']}: if that task waits "
        "for this one, neither ends."
    ),
    ReasonKind.MAX_READY: lambda v: (
        f"Its queue has {v['ready']:,} ready messages, and max_ready is {v['max_ready']:,}."
    ),
    ReasonKind.PROMOTE_RATE: lambda v: (
        f"The queue's promote_rate lets {v['promote_rate']:g} a second go."
    ),
    ReasonKind.NO_DISPATCHER: _no_dispatcher,
    ReasonKind.READY: lambda v: (
        f"It is ready: at most {v['ahead']:,} messages of its queue are ahead."
        if v["ahead"]
        else "It is ready, and the next one of its queue."
    ),
    ReasonKind.NO_CONSUMER: lambda v: (
        f"No worker consumes its queue {v['queue']}: none has a message of it, and none answered."
    ),
    ReasonKind.QUARANTINED: lambda v: (
        f"It is quarantined after {v['deaths']:,} deaths of its process: it is delivered to a "
        "process without other tasks."
    ),
    ReasonKind.LEASED: _leased,
    ReasonKind.LEASE_ENDED: lambda v: (
        f"Worker {v['worker']} had it, and its lease ended {span(v['seconds'])} ago: a dispatcher "
        "gives it to others."
    ),
    ReasonKind.REVOKED: lambda v: f"It was revoked at {v['since']}: {_never_runs(v)}",
    ReasonKind.EXPIRED: lambda v: f"It expires at {v['at']}: {_never_runs(v)}",
    ReasonKind.CANCELLED: lambda _: "It was cancelled: the next worker drops its message.",
    ReasonKind.DEAD: lambda v: f"It has been dead since {v['since']}: {v['reason']}",
    ReasonKind.ENDED: _ended,
    ReasonKind.UNKNOWN: _unknown,
}
