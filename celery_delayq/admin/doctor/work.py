"""Checks of the tasks in Redis: whether keys are consistent, and whether tasks make progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from celery_delayq.admin.doctor.finding import Finding, fault, warning
from celery_delayq.admin.doctor.subject import OnRedis
from celery_delayq.admin.findings import KINDS, Report
from celery_delayq.admin.hash_tags import unfinished
from celery_delayq.admin.repair import check
from celery_delayq.admin.stock_migration import has_future_eta
from celery_delayq.integration import beat_guard
from celery_delayq.model.script_values import to_text
from celery_delayq.store.store import layouts
from celery_delayq.store.stores import Stores
from celery_delayq.utils.text import spelled

#: Seconds for which an entry may be overdue, a tick may be late, and an expired lease may remain.
MAX_OVERDUE_SECONDS, MAX_TICK_DELAY_SECONDS, MAX_ENDED_LEASE_SECONDS = 5.0, 60.0, 60.0
#: Most ready messages of a queue whose ETA is read.
_MAX_SAMPLED_MESSAGES = 1000
#: kombu's default visibility timeout, in seconds.
_VISIBILITY_TIMEOUT_SECONDS = 3600


def fsck(subject: OnRedis) -> Iterator[Finding]:
    """Keys must be consistent."""
    report = Report()
    for report in check(Stores.single(subject.store), subject.settings):
        subject.progress(report.total, report.done)
    for found in report.findings:
        yield fault(
            f"{spelled(found.queue)}: {found.found:,} x {KINDS[found.kind].what}",
            "celery -A <app> delayq fsck shows them, fsck --repair repairs them",
        )


def hash_tags(stores: Stores, revoke_expires: float) -> Iterator[Finding]:
    """All hash tags of a Redis Cluster must have the same pauses, revokes and changes of limits."""
    for each in unfinished(stores, revoke_expires):
        more = f" and {each.number - 1:,} more" if each.number > 1 else ""
        yield fault(
            f"{spelled(each.examples[0])}{more}: {KINDS[each.kind].what}",
            "celery -A <app> delayq fsck shows it, fsck --repair finishes the call",
        )


def dispatchers(subject: OnRedis) -> Iterator[Finding]:
    """A process must promote due entries."""
    limits = {name: each.limits for name, each in layouts(subject.store.registry()).items()}
    now = subject.store.now_ms() / 1000
    for queue in subject.stats().queues:
        limit = limits.get(queue.name)
        if queue.is_paused or (limit and (limit.promote_rate or limit.max_ready)):
            continue
        if queue.next_due is not None and (late := now - queue.next_due) > MAX_OVERDUE_SECONDS:
            yield fault(
                f"{spelled(queue.name)}: "
                f"{_are(queue.overdue, 'entry', 'entries')} due and not moved, one for "
                f"{late:,.0f} s: no process dispatches",
                "start a worker, or celery -A <app> delayq dispatch where workers have "
                '{"delayq": {"dispatch": False}}',
            )


def consumers(subject: OnRedis) -> Iterator[Finding]:
    """A worker must take ready messages."""
    store, known = subject.store, layouts(subject.store.registry())

    def first(queue: str) -> bytes | None:
        layout = known.get(queue, store.layout)
        return next(store.ready_messages(queue, layout, 1), None)

    stats = subject.stats().queues
    idle = [each for each in stats if each.ready and not each.leased and not each.is_paused]
    before = [first(each.name) for each in idle]
    if not idle:
        return
    consumed = subject.consumed_queues()  # meanwhile an idle worker takes the first message
    for queue, message in zip(idle, before, strict=True):
        if queue.name not in consumed and message == first(queue.name) is not None:
            yield fault(
                f"{spelled(queue.name)}: "
                f"{_are(queue.ready, 'message', 'messages')} ready, and no worker takes "
                "them",
                f"start a worker with -Q {spelled(queue.name)}",
            )


def leases(subject: OnRedis) -> Iterator[Finding]:
    """Expired leases must be reclaimed."""
    store = subject.store
    seen, stood = cast("list[Any]", store.client.hmget(store.keys.clock, "seen", "stood"))
    if seen is None:
        return
    unseen = store.now_ms() - int(seen)
    lease_now = int(seen) - int(stood or 0)
    names = [queue.name for queue in subject.stats().queues if queue.leased]
    found = store.run_each(store.leases.leases_steps(name) for name in names)
    for queue, its in zip(names, found, strict=True):
        if isinstance(its, Exception):
            raise its
        stuck = sum(
            leased
            for _, ends, leased in its
            if unseen > MAX_ENDED_LEASE_SECONDS * 1000
            or lease_now - ends > MAX_ENDED_LEASE_SECONDS * 1000
        )
        if stuck:
            yield fault(
                f"{spelled(queue)}: {stuck:,} messages are leased to processes that have ended, "
                "and nobody takes them back",
                "start a worker, which does; if that does not help, delayq fsck --repair",
            )


def dead_letters(subject: OnRedis) -> Iterator[Finding]:
    """The dead letters of a queue must stay below the limit above which the oldest are dropped."""
    known = layouts(subject.store.registry())
    for queue in subject.stats().queues:
        limits = known.get(queue.name, subject.store.layout).limits
        most = limits.dead_letters_max
        if most and not limits.archived and queue.dead >= most * 0.9:
            yield warning(
                f"{spelled(queue.name)}: {queue.dead:,} of {most:,} dead letters; the oldest are "
                "dropped beyond that",
                "delayq dead list, then dead replay, dead purge or dead archive",
            )


def periodic(*subjects: OnRedis) -> Iterator[Finding]:
    """A process must fire periodic entries. Their index is spread over the hash tags."""
    late: list[tuple[float, str]] = []
    number = 0
    for store in (subject.store for subject in subjects):
        latest = store.now_ms() - MAX_TICK_DELAY_SECONDS * 1000
        key, client = store.keys.periodic_at, store.client
        number += cast(int, client.zcount(key, "-inf", latest))
        first = client.zrangebyscore(key, "-inf", latest, start=0, num=1, withscores=True)
        late += [((store.now_ms() - at) / 1000, to_text(name)) for name, at in cast(Any, first)]
    if late:
        seconds, name = max(late)
        yield fault(
            f"{_are(number, 'periodic entry', 'periodic entries')} late and not fired, "
            f"{spelled(name)} for {seconds:,.0f} s",
            "start a worker of an app with DelayQ(app)",
        )


def running_beats(subject: OnRedis) -> Iterator[Finding]:
    """No celery beat may run if workers fire periodic entries."""
    for name in beat_guard.running(subject.store, subject.app):
        yield fault(
            f"celery beat runs ({spelled(name)}): workers fire beat_schedule themselves, so "
            "everything in it is sent twice",
            "stop beat, see docs/periodic.md",
        )


def stock_workers(subject: OnRedis) -> Iterator[Finding]:
    """Tasks that stock workers take from shared queues have only the guarantees of stock Celery."""
    has_limits = subject.store.client.exists(subject.store.keys.limits)
    no_limits = ", and no limit holds for it" if has_limits else ""
    for name, stats in sorted(subject.ask_workers("stats").items()):
        broker = stats.get("broker", {})
        if broker.get("transport") != "redis":
            continue
        seconds = (broker.get("transport_options") or {}).get(
            "visibility_timeout", _VISIBILITY_TIMEOUT_SECONDS
        )
        yield warning(
            f"{spelled(name)} is a stock worker with a visibility_timeout of {seconds} s: what it "
            f"takes comes back only {seconds} s after its death, and runs twice when it takes "
            f"longer or has a longer ETA{no_limits}",
            "let its broker URL begin with delayq+redis:// (docs/migration.md)",
        )
    unacked = subject.store.unacked_count(subject.store.keys.stock("unacked"))
    if unacked:
        yield warning(
            f"stock workers have {unacked:,} messages, or had them when they ended",
            "once all stock workers are stopped: celery -A <app> delayq migrate --from stock",
        )


def stock_etas(subject: OnRedis) -> Iterator[Finding]:
    """Ready lists must not have tasks with a future ETA. Stock producers put such tasks there."""
    store, known = subject.store, layouts(subject.store.registry())
    now_ms = store.now_ms()
    for queue in subject.stats().queues:
        if not queue.ready:
            continue
        layout = known.get(queue.name, store.layout)
        found = [
            has_future_eta(message, now_ms)
            for message in store.ready_messages(queue.name, layout, _MAX_SAMPLED_MESSAGES)
        ]
        if etas := sum(found):
            yield warning(
                f"{spelled(queue.name)}: {etas:,} of the first {len(found):,} ready messages have "
                "a future ETA: stock producers put them there. A worker of this package that takes "
                "one moves it to the schedule, a stock worker keeps it in memory",
                "let the broker URL of producers begin with delayq+redis:// (docs/migration.md)",
            )


def _are(number: int, one: str, many: str) -> str:
    """Return a number with its noun and verb: "1 entry is", "2 entries are"."""
    return f"{number:,} {f'{one} is' if number == 1 else f'{many} are'}"
