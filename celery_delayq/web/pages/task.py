"""The page of one task: where it is and why, its timeline, its message and its canvas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from celery_delayq.admin.why.reasons import ReasonKind, Why
from celery_delayq.admin.why.timeline import events_of
from celery_delayq.errors import InvalidETA, RecordError
from celery_delayq.integration.context import CONTEXT_FIELD
from celery_delayq.model.context.trace_context import STATE
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.history import Run, read_runs
from celery_delayq.model.payload import MessageFields
from celery_delayq.model.scheduled import ScheduledTask, moment
from celery_delayq.utils import foreign
from celery_delayq.web.canvas import Node, tree_of
from celery_delayq.web.pages.scheduled import MAX_ID, Row, row_of
from celery_delayq.web.query import NotFound, Query, mark_of
from celery_delayq.web.site import Site, Texts

#: Most attempts in a timeline.
MAX_ATTEMPTS = 200

#: Headers of Celery that the page shows, by their titles.
_HEADERS = {
    "root_id": "Root task",
    "parent_id": "Parent task",
    "group": "Group",
    "origin": "Sent from",
    "expires": "Expires",
    "timelimit": "Time limit",
}


@dataclass(frozen=True, slots=True)
class TaskPage:
    """The view.

    Attributes
    ----------
    entries : list[Row]
        The waiting or running entries; two if the task was routed to two queues.
    dead : DeadLetter | None
        The dead letter of the task.
    texts : Texts | None
        Arguments and error that may be shown; None without a message.
    events : list[tuple[datetime, str]]
        The timeline.
    facts : list[tuple[str, str]]
        Further facts of the message, with their titles.
    context : Mapping[str, Any]
        The values that the task gets from its sender.
    canvas : Node | None
        The canvas as a tree; None without one.
    keeps_history : bool
        Whether the app has a history of runs.
    """

    now: datetime
    id: str
    why: Why
    entries: list[Row]
    dead: DeadLetter | None
    texts: Texts | None
    runs: Sequence[Run]
    events: list[tuple[datetime, str]]
    facts: list[tuple[str, str]]
    context: Mapping[str, str]
    canvas: Node | None
    keeps_history: bool

    @property
    def entry(self) -> Row | None:
        """The entry that is due first."""
        return self.entries[0] if self.entries else None

    @property
    def paused_queues(self) -> list[str]:
        """The queues of its entries that are paused, as far as a form can name them."""
        answers = (self.why, *self.why.others)
        reasons = [each for answer in answers for each in answer.reasons]
        names = [each.values["queue"] for each in reasons if each.kind is ReasonKind.QUEUE_PAUSED]
        return [name for name in dict.fromkeys(names) if len(name) <= MAX_ID]

    @property
    def dead_mark(self) -> str:
        """What names the dead letter in a form; ``""`` without one."""
        dead = self.dead
        if dead is None or len(dead.id) > MAX_ID:
            return ""
        return mark_of(dead.dead_lettered.died_ms, dead.id)


def read(site: Site, query: Query) -> TaskPage:
    """Return the view of the task with the id in the path.

    Raises
    ------
    NotFound
        Nothing is known of the id.
    """
    delayq, id = site.delayq, query.rest
    if not id:
        raise NotFound("Give the id of a task: /delayed/task/ID")
    answer = delayq.why(id)
    entries: list[ScheduledTask] = []
    runs: Sequence[Run] = ()
    if not delayq.session.on_rabbitmq:
        entries = sorted(delayq.find(id), key=lambda each: each.due)
        found = delayq.session.ask(lambda s: s.newest_runs(MAX_ATTEMPTS, id))
        runs = [*read_runs(reversed(found))]
    if not (answer.is_known or entries or runs):
        raise NotFound(answer.text)
    dead = delayq.dead_letter(id) if answer.state == "dead" else None
    rows = [row_of(site, each) for each in entries]
    message: MessageFields | None = entries[0] if entries else dead
    texts = _texts(site, dead) if dead is not None else rows[0].texts if rows else None
    if site.hides:
        answer, runs = _without_reasons(answer), [replace(each, reason="") for each in runs]
    return TaskPage(
        now=site.now(),
        id=id,
        why=answer,
        entries=rows,
        dead=dead,
        texts=texts,
        runs=runs,
        events=events_of(runs, answer),
        facts=[] if message is None else [*_former_eta(message, answer.due), *_facts(message)],
        context={} if message is None or site.hides else _context(message),
        canvas=tree_of(message) if message is not None else None,
        keeps_history=delayq.session.keeps_history,
    )


def _texts(site: Site, dead: DeadLetter) -> Texts:
    known = {"exception": dead.error, "traceback": dead.traceback}
    return site.texts_of(dead, uuid=dead.task_id or dead.id, name=dead.task, **known)


def _without_reasons(answer: Why) -> Why:
    """Return an answer without the texts of exceptions, which may have arguments."""
    reasons = [
        replace(each, values={**each.values, "reason": ""}) if "reason" in each.values else each
        for each in answer.reasons
    ]
    return replace(answer, reasons=reasons, others=[*map(_without_reasons, answer.others)])


def _former_eta(message: MessageFields, due: datetime | None) -> Iterator[tuple[str, str]]:
    """Yield the ETA with which a task was sent, if it is due at another time by now."""
    eta = message.own.get("eta")
    if not isinstance(eta, str) or due is None:
        return
    try:
        is_moved = abs(moment(due_of_eta(eta).ms) - due) > timedelta(seconds=1)
    except InvalidETA:
        is_moved = True
    if is_moved:
        yield "ETA when sent", eta


def _facts(message: MessageFields) -> list[tuple[str, str]]:
    headers = message.headers
    found = [(title, headers.get(name)) for name, title in _HEADERS.items()]
    # A task without a parent is its own root; a replayed or sent one may name itself.
    nothing = (None, [None, None], headers.get("id"))
    return [(title, str(value)) for title, value in found if value not in nothing]


def _context(message: MessageFields) -> Mapping[str, str]:
    """Return the context of a message as texts."""
    text = message.own.get(CONTEXT_FIELD)
    try:
        values = foreign.loads(text) if isinstance(text, str) else text
    except RecordError:
        values = None
    if not isinstance(values, Mapping):
        return {}
    return {str(n): json.dumps(v, ensure_ascii=False) for n, v in values.items() if n != STATE}
