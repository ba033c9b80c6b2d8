"""The source of archives and exports of dead letters: Redis, or a stream of RabbitMQ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from celery_delayq.deadletters.bulk import BATCH
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.lookup import StatusCode
from celery_delayq.model.scheduled import moment
from celery_delayq.store.paging import queues_of
from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.dead_letter_stream import StreamPlan
from celery_delayq.transfer.export_format import by_queue
from celery_delayq.transfer.results import Archived, server_of
from celery_delayq.utils.portions import portions

#: Most dead letters, and approximate bytes, of one transaction; reading them takes several calls.
PAGE, ROOM = 1000, 8_000_000


def plan_of(
    session: Session, filter: DeadFilter, older_than: float, report: Archived, *, own: bool = False
) -> RedisPlan | StreamPlan:
    """Return which dead letters to read, and write their number and the time into the report."""
    kind = RedisPlan if session.side is None else StreamPlan
    plan, report.total = kind.of(session, filter, older_than, own=own)
    report.made = moment(plan.now_ms).isoformat()
    return plan


def batches(
    plan: RedisPlan | StreamPlan, spared: Collection[tuple[str, str]] = ()
) -> Iterator[tuple[list[DeadLetterRow], int]]:
    """Yield dead letters of about ``ROOM`` bytes, and the number that was read to find them.

    *spared* are queues and ids to skip.
    """
    for found in plan.read():
        for some in portions(found, PAGE, lambda each: len(each.dead_lettered.data), room=ROOM):
            meant = (DeadLetterRow.of(each) for each in some if plan.filter.matches(each))
            yield [row for row in meant if (row.queue, row.id) not in spared], len(some)


class RedisPlan(NamedTuple):
    """Which dead letters are read in Redis; *low* and *high* are ms since 1970."""

    session: Session
    filter: DeadFilter
    server: str
    queues: Sequence[str]
    now_ms: int
    low: int | None
    high: int

    @classmethod
    def of(
        cls, session: Session, filter: DeadFilter, older_than: float, *, own: bool
    ) -> tuple[RedisPlan, int]:
        low, high = filter.range_ms()

        def ask(store: Store) -> tuple[RedisPlan, int]:
            now = store.now_ms()
            last = now - int(older_than * 1000)
            # Without dead letters that come meanwhile, or it might never end.
            last = last if high is None else min(high, last)
            known = queues_of(store, filter.queue)
            queues = sorted(queue for queue, x in known.items() if x.limits.archived or not own)
            total = sum(store.dead_letters.count(queue, low, last) for queue in queues)
            return cls(session, filter, server_of(store), queues, now, low, last), total

        return session.ask(ask)

    def read(self) -> Iterator[Iterator[DeadLetter]]:
        """Yield the dead letters of one queue after the other."""
        for queue in self.queues:
            store = self.session.ask(lambda store: store.dead_letters)
            found = store.all(queue, self.low, self.high, ask=self.session.ask)
            yield map(partial(DeadLetter.of, queue), found)

    def delete(self, rows: Sequence[DeadLetterRow]) -> list[DeadLetterRow]:
        """Delete dead letters in Redis, and return those that were there."""
        moved: list[DeadLetterRow] = []
        for queue, some in by_queue(rows, BATCH):
            states = self.session.ask(partial(_delete, queue=queue, rows=some, token=uuid4().hex))
            moved += [row for row, state in zip(some, states, strict=True) if state == "d"]
        return moved


def _delete(
    store: Store, *, queue: str, rows: Sequence[DeadLetterRow], token: str
) -> list[StatusCode]:
    names = [(row.dead_letter.id, row.dead_letter.dead_lettered.died_ms) for row in rows]
    return store.dead_letters.delete(queue, names, token)
