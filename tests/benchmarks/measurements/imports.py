"""Time that this package adds to the start of a process that sends tasks.

Each round starts a process, which imports Celery with kombu's transport for Redis and makes an app,
and then imports this package and calls ``DelayQ(app)``. Both times are wall clock of one process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from ..bench import Bench
from ..model import Better, Figure, Row, measurement, ratio_at_most

ROUNDS = 11

ROW = Row(
    "import",
    "import: Celery with kombu's transport for Redis, and what this package with DelayQ(app) adds",
    "ms",
    Better.LOWER,
    ratio_at_most(0.5),
)

PROGRAM = """
import json, time
began = time.perf_counter()
import kombu.transport.redis
from celery import Celery
app = Celery("shop", broker="redis://localhost:6379/0")
imported = time.perf_counter()
import celery_delayq
celery_delayq.DelayQ(app, at_least_once=True)
print(json.dumps([imported - began, time.perf_counter() - imported]))
"""


def _milliseconds() -> list[float]:
    """Return the time of Celery, and the time of this package."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True)
    return [1000 * seconds for seconds in json.loads(done.stdout)]


@measurement("import", order=5)
def imports(bench: Bench) -> Iterator[Figure]:
    """Import time of Celery, and of this package with DelayQ(app) above it."""
    _milliseconds()  # Python compiles the modules
    stock, ours = [], []
    for number in range(ROUNDS):
        bench.note(f"import: round {number + 1} of {ROUNDS}")
        celery, package = _milliseconds()
        stock.append(celery)
        ours.append(package)
    yield ROW.figure(stock, ours)
