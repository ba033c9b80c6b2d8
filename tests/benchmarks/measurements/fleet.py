"""Cost of a fleet of dispatchers for Redis, and lateness of entries when members are lost.

Dispatchers are threads of a few processes, without workers: 200 workers need more cores. In the row
of 50 processes each process has one dispatcher, as a worker has, but no tasks: tasks would take
more than two cores.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psutil

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from tests.lua.bench import entry
from tests.simulation.fleet import steady
from tests.simulation.members import Members

from ..bench import OURS, Bench, new_server
from ..model import BenchError, Better, Figure, Row, at_most, measurement, ratio_at_most

#: Processes of a fleet.
PROCESSES = 4

#: Seconds before the first due, and seconds in which entries are due. Publishing an entry takes
#: less than :data:`PUBLISHING`.
LEAD, SECONDS = 3.0, 10.0
PUBLISHING = 0.001

TITLE = "200 due/s: 1 dispatcher, 200"
CALLS = Row("fleet-calls", f"{TITLE}, script calls", "an entry", Better.LOWER, at_most(2), digits=2)
CPU = Row("fleet-cpu", f"{TITLE}, Redis' CPU", "% of a core", Better.LOWER, ratio_at_most(1.5), 2)
LATE = Row("fleet-late", f"{TITLE}, lateness p99", "ms", Better.LOWER, at_most(25, "ms"), digits=1)
QUIET = Row(
    "fleet-quiet", "10 due/s: 1 dispatcher, 100, script calls", "calls/s", Better.LOWER,
    at_most(200, "/s"),
)  # fmt: skip
WORKERS = Row(
    "fleet-workers", "1,000 due/s in 500 queues: 1 process with a dispatcher, 50, lateness p99",
    "ms", Better.LOWER, at_most(50, "ms"), 1,
)  # fmt: skip
KILLED, STOPPED = (
    Row(
        f"fleet-{name}", f"the process of the one on duty is {name}: 1 of 2, 50 of 200, worst",
        "ms late", Better.LOWER, at_most(500, "ms"),
    )
    for name in ("killed", "stopped")
)  # fmt: skip
IDLE = Row(
    "fleet-idle", "idle worker: alone, in a fleet of 100", "commands/s", Better.LOWER,
    at_most(1.5, "/s"), 2,
)  # fmt: skip

#: Seconds until an idle worker waits for a long time.
REST = 10.0


@dataclass
class Seen:
    """Seconds by which each entry of a fleet was late; script calls and CPU of Redis."""

    late: list[float] = field(default_factory=list)
    calls: float = 0.0
    cpu: float = 0.0

    @property
    def p99(self) -> float:
        """Lateness in ms."""
        return 1000 * sorted(self.late)[int(0.99 * len(self.late))]


def _run(
    size: int, rate: float, queues: int = 1, lose: int | None = None, processes: int = PROCESSES
) -> Seen:
    """Let a fleet promote; with *lose*, send this signal to the process with the duty."""
    with ExitStack() as stack:
        server = stack.enter_context(new_server())
        client = stack.enter_context(server.client())
        groups = min(size, processes)
        url = server.url_for("redis")
        fleet = [stack.enter_context(Members(url, size // groups)) for _ in range(groups)]
        for each in fleet:
            each.wait_ready()
        store, seen = Store(client, Keys(), Layout()), Seen()
        lead = LEAD + rate * SECONDS * PUBLISHING
        dues = [lead + at for at in steady(rate, SECONDS)]
        begin = store.now_ms()
        for n, due in enumerate(dues):
            store.schedule(f"q{n % queues}", entry(str(n), int(begin + due * 1000)))
        reader = threading.Thread(target=_read, args=(server, queues, begin, dues, seen))
        reader.start()
        time.sleep(max(0.0, lead - (store.now_ms() - begin) / 1000))
        before = _used(client)
        time.sleep(SECONDS / 2)
        if lose is not None:
            _lose(client, fleet, lose)
        time.sleep(SECONDS / 2)
        calls, cpu = (now - then for now, then in zip(_used(client), before, strict=True))
        reader.join(60)
        if len(seen.late) != len(dues):
            raise BenchError(f"{len(dues) - len(seen.late)} of {len(dues)} were not promoted")
        seen.calls, seen.cpu = calls, cpu
        return seen


def _lose(client: Any, fleet: list[Members], number: int) -> None:
    duty = (client.hget("delayq:clock", "duty") or b"").decode()
    for each in fleet:
        if duty in each.ids:
            os.kill(each.process.pid, number)


def _read(server: EmbeddedRedis, queues: int, begin: int, dues: list[float], seen: Seen) -> None:
    """Pop each entry, and record the seconds by which it is late."""
    client: Any = server.client()

    def note(item: bytes) -> None:
        due = int(begin + dues[int(json.loads(item)["id"])] * 1000) / 1000
        seen.late.append(time.time() - due)

    if queues == 1:
        while len(seen.late) < len(dues) and (popped := client.brpop("q0", timeout=10)):
            note(popped[1])
        return
    # A BRPOP of 500 lists takes Redis longer than the rest of the measurement.
    client.config_set("notify-keyspace-events", "Kl")
    with client.pubsub(ignore_subscribe_messages=True) as events:
        events.psubscribe("__keyspace@0__:q*")
        while len(seen.late) < len(dues):
            event = events.get_message(timeout=10)
            if event is not None and event["data"] == b"lpush":
                for item in client.rpop(event["channel"].partition(b":")[2], 100) or ():
                    note(item)


def _used(client: Any) -> tuple[float, float]:
    """Return script calls and seconds of CPU so far."""
    cpu = client.info("cpu")
    calls = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return calls, cpu["used_cpu_sys"] + cpu["used_cpu_user"]


def _idle(bench: Bench, others: int) -> float:
    """Return the commands a second of an idle worker that is not on duty.

    *others* is the number of other dispatchers.
    """
    with ExitStack() as stack:
        station = stack.enter_context(bench.station(OURS))
        url = bench.server.url_for("redis", station.database)
        # Started before the worker, so that one of these is on duty.
        for number in [others // 3] * 3 if others else []:
            stack.enter_context(Members(url, number)).wait_ready()
        worker = stack.enter_context(station.worker())
        time.sleep(REST)
        ports = {str(each.laddr.port) for each in psutil.Process(worker.pid).net_connections()}
        seconds = float(bench.size.idle_seconds)
        client: Any = stack.enter_context(bench.server.client(decode_responses=True))
        watcher, sent, last = stack.enter_context(client.monitor()), 0, uuid.uuid4().hex
        time.sleep(seconds)
        client.echo(last)
        while last not in (entry := watcher.next_command())["command"]:
            sent += entry["client_type"] != "lua" and entry["client_port"] in ports
        return sent / seconds


@measurement("fleet", order=65)
def fleet(bench: Bench) -> Iterator[Figure]:
    """Script calls, CPU and lateness of fleets of dispatchers, also when members are lost."""
    bench.note("fleet: 200 due a second")
    one, many = _run(1, 200), _run(200, 200)
    yield CALLS.figure([one.calls / len(one.late)], [many.calls / len(many.late)])
    yield CPU.figure([100 * one.cpu / SECONDS], [100 * many.cpu / SECONDS])
    yield LATE.figure([one.p99], [many.p99])
    bench.note("fleet: 10 due a second")
    yield QUIET.figure([_run(1, 10).calls / SECONDS], [_run(100, 10).calls / SECONDS])
    bench.note("fleet: 500 queues")
    alone = _run(1, 1000, 500)
    yield WORKERS.figure([alone.p99], [_run(50, 1000, 500, processes=50).p99])
    bench.note("fleet: idle")
    yield IDLE.figure([_idle(bench, 0)], [_idle(bench, 99)])
    for row, number in ((KILLED, signal.SIGKILL), (STOPPED, signal.SIGSTOP)):
        bench.note(f"fleet: {row.title}")
        few, many = _run(2, 200, lose=number), _run(200, 200, lose=number)
        yield row.figure([1000 * max(few.late)], [1000 * max(many.late)])
