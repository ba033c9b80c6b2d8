"""The page "Overview": the load to come, queues, pauses and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from celery_delayq.admin.load_ahead import By, LoadAhead, load_ahead
from celery_delayq.admin.rabbitmq.broker import RabbitMQStats
from celery_delayq.errors import NotSupported
from celery_delayq.limits.client import LimitStatus
from celery_delayq.model.scheduled import Paused, moment
from celery_delayq.store.gauges import QueueGauges
from celery_delayq.store.store import Store, layouts
from celery_delayq.store.stores import Stores
from celery_delayq.web.doctor_looks import Checks, Look
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site

#: Seconds and number of the steps of the chart, by the name of its step.
STEPS = {"minute": (60, 60), "hour": (3600, 48), "day": (86_400, 30)}

#: Most queues that the page shows, those with most tasks first.
MAX_QUEUES = 100


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Numbers of a queue; None if unknown. Rates are tasks a minute."""

    name: str
    scheduled: int | None
    held: int | None
    ready: int | None
    running: int | None
    overdue: int | None
    dead: int | None
    oldest_seconds: float | None = None
    next_due: datetime | None = None
    is_paused: bool = False
    rate_in: float | None = None
    rate_out: float | None = None

    @property
    def weight(self) -> int:
        """Number of tasks in the queue."""
        return (self.scheduled or 0) + (self.ready or 0) + (self.running or 0)


@dataclass(frozen=True, slots=True)
class Overview:
    """The view.

    Attributes
    ----------
    step, by : str
        How the chart counts: a key of :data:`STEPS`; ``"queue"`` or ``"task"``.
    load : LoadAhead | None
        The load to come; None if the broker cannot tell.
    names : list[str]
        Names of queues or tasks in a lasting order, for the colours of the chart.
    more_queues : int
        Number of queues that are not shown.
    broken : dict[str, str]
        What could not be read, with the reasons.
    look : Look | None
        The newest look of the doctor; None before its first answer.
    """

    now: datetime
    total: QueueRow
    queues: list[QueueRow]
    more_queues: int = 0
    step: str = "minute"
    by: By = "queue"
    load: LoadAhead | None = None
    names: list[str] = field(default_factory=list)
    paused: Paused = field(default_factory=lambda: Paused({}, {}))
    limits: list[LimitStatus] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    look: Look | None = None
    note: str = ""


def read_page(site: Site, query: Query) -> Overview:
    """Return the view, and have the doctor look for the next one if its findings are old."""
    view = read(site, query)
    if view.load is not None:  # not on RabbitMQ
        site.doctor.request(Checks.QUICK)
    return view


def read(site: Site, query: Query, most_queues: int = MAX_QUEUES) -> Overview:
    """Return the view, with at most *most_queues* queues.

    Fields: ``step`` and ``by`` of the chart.
    """
    session, delayq = site.delayq.session, site.delayq
    if session.on_rabbitmq:
        return _on_rabbitmq(site)
    step = query.choice("step", [*STEPS])
    by: By = "task" if query.text("by") == "task" else "queue"
    queues, broken = session.ask(lambda stores: _queues(site, stores, ()))
    queues.sort(key=lambda each: (-each.weight, each.name))
    return Overview(
        now=site.now(),
        total=_total(queues),
        queues=queues[:most_queues],
        more_queues=max(0, len(queues) - most_queues),
        step=step,
        by=by,
        load=load_ahead(session, *STEPS[step], by),
        names=sorted(site.app.tasks if by == "task" else (each.name for each in queues)),
        paused=delayq.paused(),
        limits=delayq.limits.list(),
        broken=broken,
        look=site.doctor.newest,
    )


def read_queues(site: Site, names: Iterable[str]) -> list[QueueRow]:
    """Return the rows of all queues that Redis or the app knows, and of those of *names*."""
    rows, _ = site.delayq.session.ask(lambda stores: _queues(site, stores, names))
    return sorted(rows, key=lambda each: each.name)


def _queues(
    site: Site, stores: Stores, names: Iterable[str]
) -> tuple[list[QueueRow], dict[str, str]]:
    """Return the rows of all queues, and what could not be read."""
    consumed = frozenset({*site.app.amqp.queues.consume_from, *names})
    rows: list[QueueRow] = []
    broken: dict[str, str] = {}
    found: dict[str, QueueGauges] = {}
    paused: set[str] = set()

    def read_store(store: Store, its: frozenset[str]) -> None:
        server = store.gauges.server()
        known = layouts(server.registry)
        names = {name: known.get(name, store.layout) for name in sorted({*known, *its})}
        for name, each in store.gauges.queues(names).items():
            if isinstance(each, QueueGauges):
                found[name] = each
            else:
                broken[name] = str(each)
        paused.update(server.paused)

    _, away = stores.ask_each(consumed, read_store)
    if away:
        broken["Redis Cluster"] = away
    rate = site.rates.add({n: each.totals for n, each in found.items() if each.totals is not None})
    for name, each in found.items():
        rows.append(_row(name, each, name in paused, rate))
    return rows, broken


def _row(
    name: str,
    gauges: QueueGauges,
    is_paused: bool,
    rate: Callable[[str, str], float | None],
) -> QueueRow:
    sizes = gauges.sizes.in_paused_queue() if is_paused else gauges.sizes
    first = sizes.first_due if sizes.overdue else None
    oldest = min((ms for ms in (first, sizes.oldest_ready) if ms is not None), default=None)
    return QueueRow(
        name=name,
        scheduled=sizes.scheduled,
        held=sizes.held + sizes.paused,
        ready=sizes.ready,
        running=gauges.leased,
        overdue=sizes.overdue,
        dead=sizes.dead,
        oldest_seconds=None if oldest is None else max(0, sizes.now - oldest) / 1000,
        next_due=None if sizes.first_due is None else moment(sizes.first_due),
        is_paused=is_paused,
        rate_in=rate(name, "accepted"),
        rate_out=rate(name, "acked"),
    )


def _total(rows: list[QueueRow]) -> QueueRow:
    def add(field: str) -> int:
        return sum(getattr(each, field) or 0 for each in rows)

    def add_rates(field: str) -> float | None:
        known = [rate for each in rows if (rate := getattr(each, field)) is not None]
        return sum(known) if known else None

    waits = [each.oldest_seconds for each in rows if each.oldest_seconds is not None]
    dues = [each.next_due for each in rows if each.next_due is not None]
    return QueueRow(
        name="all queues",
        scheduled=add("scheduled"),
        held=add("held"),
        ready=add("ready"),
        running=add("running"),
        overdue=add("overdue"),
        dead=add("dead"),
        oldest_seconds=max(waits, default=None),
        next_due=min(dues, default=None),
        rate_in=add_rates("rate_in"),
        rate_out=add_rates("rate_out"),
    )


def _on_rabbitmq(site: Site) -> Overview:
    stats = site.delayq.stats()
    if not isinstance(stats, RabbitMQStats):
        raise NotSupported("the broker is neither a Redis nor a RabbitMQ of this package")
    rows = [QueueRow(each.name, None, None, each.ready, None, None, None) for each in stats.queues]
    total = QueueRow("all queues", stats.scheduled, None, stats.ready, None, None, stats.dead)
    note = "RabbitMQ counts the scheduled tasks of all queues together, and lists none of them."
    return Overview(site.now(), total, rows, note=note, look=site.doctor.newest)
