"""``schedule_many``: schedules tasks in batches, with an outcome for each task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery, Signature

from celery_delayq.errors import BrokerUnavailable, CommandRefused, ConfigError
from celery_delayq.integration.not_run import note_outcomes
from celery_delayq.model import publish_outcome
from celery_delayq.model.publish_outcome import PublishOutcome, Put
from celery_delayq.schedule.items import (
    FIELD_OPTIONS,
    REFUSED_OPTIONS,
    InvalidItem,
    Item,
    ItemOutcome,
    ItemReader,
    ManyFailed,
    ManyReport,
    State,
    check_several,
)
from celery_delayq.schedule.message_factory import MessageFactory, send_call
from celery_delayq.schedule.message_template import Job, Routed
from celery_delayq.store.scripting.calls import EntriesCall
from celery_delayq.store.scripting.pipelining import LOST_CONNECTION_ERRORS, EntryPipeline
from celery_delayq.store.scripting.replies import EntriesReply
from celery_delayq.store.session import Session
from celery_delayq.transport.amqp import messages

#: Entries that are sent together; ten script calls.
SEND_BATCH = 500

#: Refused items that a report keeps.
MAX_REFUSED_ITEMS = 100

#: Seconds after which a batch that is not full is sent, when the next item comes.
FLUSH_SECONDS = 0.1

#: States without an error; of an item that went to several queues, the one that comes first is
#: reported.
_GOOD_STATES: tuple[State, ...] = (
    "superseded",
    "kept",
    "replaced",
    "scheduled",
    "ready",
    "duplicate",
)
_STATE_RANK: tuple[State, ...] = ("refused", "full", "conflict", *_GOOD_STATES)


def schedule_many(
    session: Session,
    items: Iterable[Item | Mapping[str, Any] | Signature],
    task: Any,
    options: dict[str, Any],
    on_outcome: Callable[[ItemOutcome], None] | None,
    *,
    signals: bool,
    batch: int,
) -> ManyReport:
    """Schedule many tasks, as :meth:`.schedule.client.Schedule.schedule_many` describes."""
    check_several(items)
    wrong = sorted((REFUSED_OPTIONS - {*FIELD_OPTIONS}) & options.keys())
    if wrong:
        raise InvalidItem(f"{', '.join(wrong)}: no option of all items")
    if batch < 1:
        raise InvalidItem(f"batch={batch!r}: expected a number from 1")
    reader = ItemReader(session.app, task, options)
    if session.on_rabbitmq:
        return PublishRun(session, on_outcome, batch).send_items(iter(items), reader)
    run = ManyRun(session, on_outcome, batch)
    maker = MessageFactory(session.app, reader.common, signals)
    return run.send_items(iter(items), EntryMaker(reader, maker))


@dataclass
class EntryMaker:
    """Makes entries of items; *id* is the id of the last item, None if it could not be read."""

    reader: ItemReader
    maker: MessageFactory
    id: str | None = None

    def __call__(self, given: Any) -> Routed:
        """Return the entry of an item; raises the error of an invalid item."""
        self.id = None
        job = self.reader.read(given)
        self.id = job.id
        return self.maker.make(job)


class ManyCall:
    """One call of ``schedule_many``.

    Parameters
    ----------
    on_outcome : Callable[[ItemOutcome], None] | None
        Called with the outcome of each item.

    Raises
    ------
    ConfigError
        ``task_always_eager`` is set, or ``task_protocol`` is 1.
    """

    def __init__(self, app: Celery, on_outcome: Callable[[ItemOutcome], None] | None) -> None:
        if app.conf.task_always_eager:
            raise ConfigError("task_always_eager is set: no task is scheduled; unset it")
        if app.conf.task_protocol != 2:
            raise ConfigError(
                f"task_protocol={app.conf.task_protocol!r}: expected 2, the only one whose "
                "messages can be scheduled"
            )
        self._app = app
        self._on_outcome = on_outcome
        self._report = ManyReport()

    def oldest_unanswered(self) -> int:
        """Return the index of the first item without an outcome."""
        return self._report.taken

    def report_outcome(self, outcome: ItemOutcome) -> None:
        """Count an outcome and give it to the caller; raises CallerFailed if its function fails."""
        report = self._report
        report.counts[outcome.state] = report.counts.get(outcome.state, 0) + 1
        if outcome.error is not None and len(report.refusals) < MAX_REFUSED_ITEMS:
            report.refusals.append(outcome)
        if self._on_outcome is not None:
            try:
                self._on_outcome(outcome)
            except Exception as exc:
                raise CallerFailed(exc) from exc

    def refuse(self, id: str | None, error: Exception) -> None:
        """Report an item of which no message can be made; *id* is None if it cannot be read."""
        self._report.taken += 1
        self.report_outcome(ItemOutcome(self._report.taken - 1, id, "refused", error))

    @contextmanager
    def sending(self, broker_errors: tuple[type[Exception], ...]) -> Iterator[None]:
        """Note the position at the end; an error of the caller or the broker has it too.

        Raises
        ------
        ManyFailed
            Code of the caller has raised an error, or the broker one of *broker_errors*.
        """
        try:
            yield
        except CallerFailed as failure:
            raise self.make_error(failure.cause) from failure.cause
        except broker_errors as exc:
            raise self.make_error(exc) from exc
        self._report.position = self._report.taken

    def make_error(self, cause: Exception) -> ManyFailed:
        """Return the error with the report that ends the call."""
        report = self._report
        report.position = self.oldest_unanswered()
        return ManyFailed(
            f"scheduling ended early, after {report}; go on with item {report.position}: "
            f"{type(cause).__name__}: {cause}",
            report,
        )


class ManyRun(ManyCall):
    """One call of ``schedule_many`` on Redis.

    Parameters
    ----------
    on_outcome : Callable[[ItemOutcome], None] | None
        Called with the outcome of each item.
    batch : int
        Entries that are sent together.
    errors_only : bool
        Call *on_outcome* for errors only.
    """

    def __init__(
        self,
        session: Session,
        on_outcome: Callable[[ItemOutcome], None] | None,
        batch: int,
        errors_only: bool = False,
    ) -> None:
        super().__init__(session.app, on_outcome)
        self._ask = session.ask
        self._batch = batch
        #: States that are counted and not given to *on_outcome*.
        self._counted = _GOOD_STATES if errors_only or on_outcome is None else ()
        #: Items for several queues by index: the number of queues, and the outcomes so far.
        self._several: dict[int, tuple[int, list[tuple[str, Put]]]] = {}
        self._pipeline: EntryPipeline | None = None

    def send_items(self, items: Iterator[Any], make: EntryMaker) -> ManyReport:
        """Send the entries that *make* returns; raises the errors of schedule_many."""
        with self.sending((CommandRefused, *LOST_CONNECTION_ERRORS)):
            retries = publish_retries(self._app)
            pipeline = self._pipeline = EntryPipeline(self._ask, self._count_reply, retries)
            with make.maker:
                try:
                    self._send(items, make, pipeline)
                    settings = make.maker.channel.settings
                    if settings.wait_replicas:
                        pipeline.wait(settings.wait_replicas, settings.wait_timeout)
                finally:
                    pipeline.close()
        return self._report

    def _send(self, items: Iterator[Any], make: EntryMaker, pipeline: EntryPipeline) -> None:
        report, clock = self._report, time.monotonic
        began = clock()
        for given in each_item(items, pipeline.flush):
            try:
                queues, entry = make(given)
            except (CommandRefused, *LOST_CONNECTION_ERRORS):
                raise  # the item is not at fault, and counts as not taken
            except Exception as exc:
                self.refuse(make.id, exc)
                if pipeline.buffered and clock() - began > FLUSH_SECONDS:
                    pipeline.send()
                continue
            index = report.taken
            report.taken += 1
            if not pipeline.buffered:
                began = clock()
            for queue in queues:
                pipeline.add(queue, entry, index)
            if len(queues) > 1:
                self._several[index] = len(queues), []
            if pipeline.buffered >= self._batch or clock() - began > FLUSH_SECONDS:
                pipeline.send()
        pipeline.flush()

    def _count_reply(self, call: EntriesCall, indexes: list[int], reply: EntriesReply) -> None:
        """Count the outcomes of the entries of one script call."""
        counts = self._report.counts
        for index, id, put in zip(indexes, call.ids, reply.puts, strict=True):
            queue = call.queue
            if index in self._several:
                several, found = self._several[index]
                found.append((queue, put))
                if len(found) < several:
                    continue
                # All queues of the item have replied; the first outcome by rank is reported.
                del self._several[index]
                queue, put = min(found, key=lambda one: _STATE_RANK.index(one[1].state))
            if put.state in self._counted:
                counts[put.state] = counts.get(put.state, 0) + 1
            else:
                error = publish_outcome.refusal_error(PublishOutcome(id, put, queue))
                self.report_outcome(ItemOutcome(index, id, put.state, error, put.other))
        if reply.replaced:
            note_outcomes(self._app, reply.outcomes(call))

    def oldest_unanswered(self) -> int:
        """Return the index of the first item without an outcome."""
        unanswered = self._pipeline.unanswered() if self._pipeline is not None else iter(())
        return min(unanswered, default=self._report.taken)


class PublishRun(ManyCall):
    """One call of ``schedule_many`` on RabbitMQ.

    Celery makes each message. A lost connection ends the call. RabbitMQ does not know ids, so a
    call that continues at the position may send a batch twice.
    """

    def __init__(
        self, session: Session, on_outcome: Callable[[ItemOutcome], None] | None, batch: int
    ) -> None:
        super().__init__(session.app, on_outcome)
        self._batch = batch
        self._made: list[tuple[str, messages.Routed]] = []

    def oldest_unanswered(self) -> int:
        return self._report.taken - len(self._made)

    def send_items(self, items: Iterator[Any], reader: ItemReader) -> ManyReport:
        """Send the messages of items; raises the errors of schedule_many."""
        with (
            self._app.connection_for_write() as connection,
            self.sending((*connection.connection_errors, BrokerUnavailable)),
        ):
            self._send(items, reader, connection.default_channel)
        return self._report

    def _send(self, items: Iterator[Any], reader: ItemReader, channel: Any) -> None:
        kept: list[messages.Routed] = []

        def keep(message: Any, exchange: str = "", routing_key: str = "", **_: Any) -> None:
            kept.append(channel.routed(message, exchange, routing_key))

        connection_errors = (*channel.connection.client.connection_errors, BrokerUnavailable)
        channel.basic_publish = keep
        producer = self._app.amqp.Producer(channel, auto_declare=False)
        for given in each_item(items, lambda: self._flush(channel)):
            job: Job | None = None
            kept.clear()
            try:
                job = reader.read(given)
                send_call(self._app, job, reader.common, producer)
            except connection_errors:
                raise
            except Exception as exc:
                self._flush(channel)
                self.refuse(None if job is None else job.id, exc)
                continue
            self._report.taken += 1
            self._made.append((job.id, kept[-1]))
            if len(self._made) >= self._batch:
                self._flush(channel)
        self._flush(channel)

    def _flush(self, channel: Any) -> None:
        """Send the messages made so far, and report their outcomes."""
        first = self.oldest_unanswered()
        refused = channel.send([sent for _, sent in self._made])
        made, self._made = self._made, []
        for n, (id, sent) in enumerate(made):
            state: State = "ready" if sent.due_ms is None else "scheduled"
            error = refused.get(n)
            self.report_outcome(ItemOutcome(first + n, id, "full" if error else state, error))


def each_item(items: Iterator[Any], flush: Callable[[], object]) -> Iterator[Any]:
    """Yield the items of the caller.

    Raises
    ------
    CallerFailed
        The iterator has failed; *flush* was called before.
    """
    try:
        for item in items:  # noqa: UP028  `yield from` would close the caller's iterator too
            yield item
    except Exception as exc:
        flush()
        raise CallerFailed(exc) from exc


class CallerFailed(Exception):
    """The caller's iterable or ``on_outcome`` raised an error, *cause*."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


def publish_retries(app: Celery) -> Mapping[str, Any] | None:
    """Return the retry policy of the app for publishing; None without retries."""
    if not app.conf.task_publish_retry:
        return None
    names = ("max_retries", "interval_start", "interval_step", "interval_max")
    policy = app.conf.task_publish_retry_policy
    return {"max_retries": 3} | {name: policy[name] for name in names if name in policy}
