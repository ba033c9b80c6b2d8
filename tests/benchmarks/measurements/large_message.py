"""Cost of one large message for Redis in each call that moves it, relative to one SET."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from celery_delayq.model.envelope import Due, Entry, Record, head_with
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store

from ..bench import OURS, Bench
from ..model import Better, Figure, Row, measurement, ratio_at_most

#: Bytes of the message, and rounds; the median counts.
SIZE, ROUNDS = 5_000_000, 7
#: Highest cost of a call, relative to one SET of the same bytes.
MOST = 3.0

QUEUE, ME, LEASE, SOON = "celery", "me", 60.0, 30


def _entry(message_id: str, countdown: int) -> Entry:
    task = "shop.tasks.send_reminder"
    own = b'%b, "task": "%b"}}' % (head_with(f"id {message_id} 0 -"), task.encode())
    record = Record(0, message_id, task, own + b', "body": "%b"}' % (b"x" * SIZE))
    return Entry("id", Due(countdown, relative=True), 0, record.pack())


class Costs:
    """Seconds of CPU of Redis by call."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def of(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call, and record its cost."""
        before = self._used()
        reply = call()
        self.seconds[name].append(self._used() - before)
        return reply

    def _used(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])


def _round(store: Store, costs: Costs) -> None:
    """Let one message go through all states."""
    leases, requests = store.leases, iter("123456789")

    def add(message_id: str) -> None:
        call = store.schedule_call(QUEUE)
        call.add(_entry(message_id, SOON))
        costs.of("add", lambda: store.run(call))
        time.sleep(2 * SOON / 1000)
        costs.of("promote", lambda: store.promote(QUEUE, Layout(), 1))

    def acquire() -> str:
        number = next(requests)
        costs.of("acquire", lambda: leases.acquire(QUEUE, ME, LEASE, number, 1))
        return f"{number}:1"

    costs.of("set", lambda: store.client.set("plain", b"x" * SIZE))
    add("first")
    field = acquire()
    costs.of("requeue", lambda: leases.requeue(QUEUE, ME, [field]))
    field = acquire()
    entry, head = _entry("retry", SOON), head_with("id first 0 -")
    retry = leases.replace_call(QUEUE, entry, QUEUE, ME, field, head=head, when_due="push")
    costs.of("retry", lambda: store.run(retry))
    time.sleep(2 * SOON / 1000)
    store.promote(QUEUE, Layout(), 1)
    field = acquire()
    costs.of("ack", lambda: store.run(leases.ack_call(QUEUE, ME, {field: b""})))
    add("second")
    field = acquire()
    costs.of("dead letter", lambda: leases.dead_letter(QUEUE, ME, field, "id", "why"))


@measurement("large-message", order=95)
def large_message(bench: Bench) -> Iterator[Figure]:
    """CPU of Redis for each call that moves a message of 5 MB, beside one SET of the same bytes."""
    bench.note(f"large-message: {SIZE:,} bytes")
    with bench.station(OURS) as station:
        client = bench.server.client(db=station.database)
        store, costs = Store(client, Keys(database=station.database), Layout()), Costs(client)
        for _ in range(ROUNDS):
            station.client.flushdb()
            _round(store, costs)
    milliseconds = {
        name: sorted(1000 * each for each in seconds) for name, seconds in costs.seconds.items()
    }
    plain = milliseconds.pop("set")
    for name, values in milliseconds.items():
        row = Row(
            f"large-message-{name.replace(' ', '-')}",
            f"a message of {SIZE / 1e6:g} MB: one SET, {name}, CPU of Redis",
            "ms", Better.LOWER, ratio_at_most(MOST), digits=1,
        )  # fmt: skip
        yield row.figure([plain[len(plain) // 2]], [values[len(values) // 2]])
