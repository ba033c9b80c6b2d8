"""Scheduling very many tasks: in batches, with an outcome for each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from celery import Signature
from redis.exceptions import RedisError

from celery_delayq.errors import ConfigError
from celery_delayq.model import publish_outcome
from celery_delayq.model.publish_outcome import Put
from celery_delayq.schedule import revocation
from celery_delayq.schedule.items import (
    COMMON,
    NOT_OPTIONS,
    InvalidItem,
    Item,
    ItemOutcome,
    ManyFailed,
    Reader,
    Report,
    State,
)
from celery_delayq.schedule.message_factory import Maker
from celery_delayq.schedule.message_template import Routed
from celery_delayq.store.pipeline import LOST, Pipeline
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Puts

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["InvalidItem", "Item", "ItemOutcome", "ManyFailed", "ManyMixin", "Report"]

T = TypeVar("T")

#: Entries that are sent together; ten script calls.
BATCH = 500

#: Seconds after which a batch that is not full is sent, when the next item comes.
PATIENCE = 0.1

#: Refused items that a report keeps.
SHOWN = 100

#: What happens without an error.
_WITHOUT_ERROR = frozenset({"scheduled", "ready", "duplicate", "replaced", "kept", "superseded"})

#: What to say of an item that went to several queues: the one that comes first.
_RANK: tuple[State, ...] = (
    "refused",
    "full",
    "conflict",
    "superseded",
    "kept",
    "replaced",
    "scheduled",
    "ready",
    "duplicate",
)


class ManyMixin:
    """Gives :class:`~celery_delayq.DelayQ` its ``schedule_many``."""

    app: Celery | None

    def _ask(self, question: Callable[[Store], T]) -> T:
        raise NotImplementedError

    def schedule_many(
        self,
        items: Iterable[Item | Mapping[str, Any] | Signature],
        *,
        task: Any = None,
        on_outcome: Callable[[ItemOutcome], None] | None = None,
        signals: bool = True,
        batch: int = BATCH,
        **options: Any,
    ) -> Report:
        """Schedule very many tasks, in batches and with bounded memory.

        The messages are those that ``apply_async`` would send. An item that is wrong is refused
        and does not stop the others. A batch is sent when it is full, and while Redis works on it
        the next one fills; when items come slowly, one that is older than 0.1 s is sent with the
        next item.

        Parameters
        ----------
        items : Iterable
            Calls: an :class:`Item`, a mapping with some of its fields, or a signature such as
            ``add.s(1, 2).set(countdown=60)``. They are taken one by one, so a generator of
            millions is fine.
        task : Task | str | None
            The task of the items that name none.
        on_outcome : Callable[[ItemOutcome], None] | None
            Called with what became of each item, soon after it was sent, in no particular order.
        signals : bool
            Where something listens to ``before_task_publish``, ``after_task_publish`` or
            ``task_sent``, Celery makes each message itself, with its signals, at about a sixth of
            the speed. False has it make only the first of each kind (same task, queue and other
            options): what listeners put into that one is in all of them.
        batch : int
            Entries that are sent together.
        **options
            What ``apply_async`` takes, for all items; what an item says itself goes before.

        Returns
        -------
        Report
            How many items came to which outcome.

        Raises
        ------
        ManyFailed
            The iterable raised an error, or Redis stayed away for longer than
            ``task_publish_retry_policy`` tries; ``report.position`` says from where to go on.
            Running again with the same ids adds nothing twice while they wait or run.
        ConfigError
            The broker is not one of ours, ``task_always_eager`` is set or ``task_protocol`` is 1.

        Notes
        -----
        No event ``task-sent`` is sent, ``min_delay`` does not count, and inside a task those that
        are sent do not become its children. Calls that one template cannot serve are made by
        Celery one by one, which takes six times as long: other serializers than JSON,
        compression, tasks or apps with an ``apply_async``, ``shadow_name`` or ``send_task`` of
        their own, pydantic arguments, and routers that are functions.

        Examples
        --------
        >>> rows = [{"args": (n,), "countdown": n, "id": f"reminder-{n}"} for n in range(3)]
        >>> delayq.schedule_many(rows, task=remind, queue="mail")  # doctest: +SKIP
        """
        if self.app is None:
            raise ConfigError("DelayQ() has no app yet; call init_app(app) first")
        if isinstance(items, (Item, Mapping, str, bytes)):
            raise InvalidItem(f"items={items!r}: expected several of them, such as [Item(...)]")
        wrong = sorted((NOT_OPTIONS - {*COMMON}) & options.keys())
        if wrong:
            raise InvalidItem(f"{', '.join(wrong)}: no option of all items")
        if batch < 1:
            raise InvalidItem(f"batch={batch!r}: expected a number from 1")
        reader = Reader(self.app, task, options)
        run = Run(self.app, self._ask, on_outcome, batch)
        maker = Maker(self.app, reader.common, signals)
        return run.take(iter(items), maker, _Making(reader, maker))


class Making(Protocol):
    """Makes what is sent of what was given."""

    #: The id of the last call that could be read, None for one that could not.
    id: str | None

    def __call__(self, given: Any) -> Routed:
        """Return the entry of a call; raises why there is none."""
        ...


class _Making:
    """Makes entries of items."""

    def __init__(self, reader: Reader, maker: Maker) -> None:
        self._reader = reader
        self._maker = maker
        self.id: str | None = None

    def __call__(self, given: Any) -> Routed:
        self.id = None
        job = self._reader.read(given)
        self.id = job.id
        return self._maker.make(job)


class Run:
    """One call of ``schedule_many``.

    Parameters
    ----------
    on_outcome : Callable[[ItemOutcome], None] | None
        Called with what became of each item.
    batch : int
        Entries that are sent together.
    errors_only : bool
        Not for what happens without an error.
    """

    def __init__(
        self,
        app: Celery,
        ask: Callable[[Callable[[Store], Any]], Any],
        on_outcome: Callable[[ItemOutcome], None] | None,
        batch: int,
        errors_only: bool = False,
    ) -> None:
        if app.conf.task_always_eager:
            raise ConfigError("task_always_eager is set: no task is scheduled; unset it")
        if app.conf.task_protocol != 2:
            raise ConfigError(
                f"task_protocol={app.conf.task_protocol!r}: expected 2, the only one whose "
                "messages can be scheduled"
            )
        self._app = app
        self._ask = ask
        self._on_outcome = on_outcome
        self._batch = batch
        #: States that are only counted.
        self._counted = _WITHOUT_ERROR if errors_only or on_outcome is None else frozenset()
        self._report = Report()
        #: Of items with several queues: how many there are, and what those that answered said.
        self._several: dict[int, tuple[int, list[tuple[str, Put]]]] = {}
        self._pipeline: Pipeline | None = None

    def take(self, items: Iterator[Any], maker: Maker, make: Making) -> Report:
        """Send what *make* makes, with *maker*, of all items; raises what schedule_many does."""
        try:
            pipeline = self._pipeline = Pipeline(self._ask, self._on_answer, _retries(self._app))
            with maker:
                try:
                    self._send(items, make, pipeline)
                    settings = maker.channel.settings
                    if settings.wait_replicas:
                        pipeline.wait(settings.wait_replicas, settings.wait_timeout)
                finally:
                    pipeline.close()
        except _Stopped as stopped:
            raise self._failed(stopped.cause) from stopped.cause
        except (RedisError, *LOST) as exc:
            raise self._failed(exc) from exc
        self._report.position = self._report.taken
        return self._report

    def _send(self, items: Iterator[Any], make: Making, pipeline: Pipeline) -> None:
        report, clock = self._report, time.monotonic
        began = clock()
        while True:
            try:
                given = next(items)
            except StopIteration:
                break
            except Exception as exc:
                pipeline.flush()
                raise _Stopped(exc) from exc
            try:
                queues, entry = make(given)
            except (RedisError, *LOST):
                raise  # not the item's fault, which counts as not taken
            except Exception as exc:
                report.taken += 1
                self._tell(ItemOutcome(report.taken - 1, make.id, "refused", exc))
                if pipeline.buffered and clock() - began > PATIENCE:
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
            if pipeline.buffered >= self._batch or clock() - began > PATIENCE:
                pipeline.send()
        pipeline.flush()

    def _on_answer(self, call: Puts, indexes: list[int], puts: list[Put]) -> None:
        """Count what became of the entries of one script call."""
        counts = self._report.counts
        replaced = []
        for index, id, put in zip(indexes, call.ids, puts, strict=True):
            if put.state == "replaced" and put.other != id:
                replaced.append(put.other)
            queue = call.queue
            if index in self._several:
                several, found = self._several[index]
                found.append((queue, put))
                if len(found) < several:
                    continue
                # All its queues have answered: the worst counts.
                del self._several[index]
                queue, put = min(found, key=lambda one: _RANK.index(one[1].state))
            if put.state in self._counted:
                counts[put.state] = counts.get(put.state, 0) + 1
            else:
                self._tell(_outcome(queue, index, id, put))
        if replaced:
            revocation.note_revoked(self._app, replaced, "replaced")

    def _tell(self, outcome: ItemOutcome) -> None:
        report = self._report
        report.counts[outcome.state] = report.counts.get(outcome.state, 0) + 1
        if outcome.error is not None and len(report.refusals) < SHOWN:
            report.refusals.append(outcome)
        if self._on_outcome is not None:
            try:
                self._on_outcome(outcome)
            except Exception as exc:
                raise _Stopped(exc) from exc

    def oldest(self) -> int:
        """Return the index of the first item that has no outcome yet."""
        unanswered = self._pipeline.unanswered() if self._pipeline is not None else iter(())
        return min(unanswered, default=self._report.taken)

    def _failed(self, cause: Exception) -> ManyFailed:
        report = self._report
        report.position = self.oldest()
        return ManyFailed(
            f"scheduling ended early, after {report}; go on with item {report.position}: "
            f"{type(cause).__name__}: {cause}",
            report,
        )


class _Stopped(Exception):
    """Code of the caller has raised an error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


def _outcome(queue: str, index: int, id: str, put: Put) -> ItemOutcome:
    error = publish_outcome.refusal(queue, id, put)
    return ItemOutcome(index, id, put.state, error, put.other)


def _retries(app: Celery) -> Mapping[str, Any] | None:
    """Return how often to try again, as publishing one task does."""
    if not app.conf.task_publish_retry:
        return None
    names = ("max_retries", "interval_start", "interval_step", "interval_max")
    policy = app.conf.task_publish_retry_policy
    return {"max_retries": 3} | {name: policy[name] for name in names if name in policy}
