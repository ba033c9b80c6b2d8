"""Real dispatchers, as threads of this process, on their own Redis."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, cast

from redis import Redis

from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from tests.lua.bench import entry
from tests.simulation.fleet import Outcome, steady

#: Seconds before the first due. All dispatchers start meanwhile.
LEAD = 3.0


def run(size: int, rate: float, seconds: float) -> tuple[Outcome, float]:
    """Let *size* dispatchers promote *rate* entries a second.

    Returns
    -------
    (outcome, load)
        *load* is the share of a core that Redis used.
    """
    with EmbeddedRedis() as server:
        client = server.client()
        store = Store(client, Keys(), Layout())
        fleet = [
            Dispatcher(Store(server.client(), Keys(), Layout()), Settings()) for _ in range(size)
        ]
        for each in fleet:
            each.start()
        dues = [LEAD + at for at in steady(rate, seconds)]
        begin = store.now_ms()
        for n, due in enumerate(dues):
            store.schedule("q", entry(str(n), int(begin + due * 1000)))
        late: list[float] = []
        reader = threading.Thread(target=_read, args=(client, begin, dues, late))
        reader.start()
        time.sleep(max(0.0, LEAD - (store.now_ms() - begin) / 1000))
        before = _used(server.client())
        time.sleep(seconds)
        after = _used(server.client())
        reader.join()
        for each in fleet:
            each.stop()
        for each in fleet:
            each.join()
        outcome = Outcome(seconds, int(after[0] - before[0]), late=late)
        return outcome, (after[1] - before[1]) / seconds


def _read(client: Redis, begin: int, dues: list[float], late: list[float]) -> None:
    """Pop each entry, and record the seconds by which it is late."""
    for _ in dues:
        item = cast("tuple[bytes, bytes]", client.brpop("q", timeout=10))
        seconds, micros = cast("tuple[int, int]", client.time())
        late.append(
            seconds + micros / 1e6 - int(begin + dues[int(json.loads(item[1])["id"])] * 1000) / 1000
        )


def _used(client: Redis) -> tuple[float, float]:
    """Return script calls and seconds of CPU so far."""
    commands = cast("dict[str, dict[str, Any]]", client.info("commandstats"))
    cpu = cast("dict[str, float]", client.info("cpu"))
    calls = commands.get("cmdstat_evalsha", {}).get("calls", 0)
    return calls, cpu["used_cpu_sys"] + cpu["used_cpu_user"]
