"""A test with "a day later": beside the start of a worker, fifty of them, and a whole year."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from runpy import run_path

from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import WorkerProcess, time_travel

from ..bench import Bench
from ..model import BenchError, Better, Figure, Row, below, measurement, ratio_at_most

TESTS = 50
DAYS = 365

DAY = Row(
    "travel-day",
    "a test starts a worker; beside: travels 24 hours with one follow-up",
    "ms",
    Better.LOWER,
    ratio_at_most(0.1),
)
SUITE = Row(
    "travel-tests",
    f"{TESTS} such tests on one server (median, longest)",
    "s",
    Better.LOWER,
    below(10, "s"),
    digits=1,
)
YEAR = Row(
    "travel-year",
    f"a test travels {DAYS} days over a daily entry with a follow-up each (median, longest)",
    "s",
    Better.LOWER,
    below(10, "s"),
    digits=1,
)

#: The module of the worker's app, which is the app of this process too.
APP = """
from celery import Celery
from celery_delayq import DelayQ
app = Celery("shop")
DelayQ(app)
@app.task(name="remind")
def remind(name):
    follow_up.apply_async((name,), countdown=7200)
@app.task(name="follow_up")
def follow_up(name):
    return name
"""


class Shop:
    """The app of the tests, on one private server."""

    def __init__(self, folder: Path, server: EmbeddedRedis) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "travel_shop.py").write_text(APP)
        self._folder, self._server = folder, server
        self._app: Celery = run_path(str(folder / "travel_shop.py"))["app"]

    def start_worker(self) -> float:
        """Return the seconds until a worker is ready."""
        began = time.perf_counter()
        with WorkerProcess(
            "travel_shop:app",
            broker_url=self._server.url_for("delayq+redis"),
            cwd=self._folder,
            env={"PYTHONPATH": f"{self._folder}:{':'.join(sys.path)}"},
        ):
            return time.perf_counter() - began

    def test(self, days: int = 1) -> float:
        """Return the seconds of a test: over several days with a daily entry."""
        began = time.perf_counter()
        with time_travel(self._app, self._server) as travel:
            if days == 1:
                self._app.tasks["remind"].apply_async(("ada",), countdown=20 * 3600)
            else:
                # Soon after the start, so that the last run has its follow-up too.
                next_hour = crontab("0", str((travel.now + timedelta(hours=1)).hour))
                DelayQ.of(self._app).periodic.add("daily", next_hour, task="remind", args=["ada"])
            if travel.travel(days=days) != 2 * days:
                raise BenchError(f"{2 * days} runs in {days} days")
        return time.perf_counter() - began


@measurement("travel", order=31)
def travel(bench: Bench) -> Iterator[Figure]:
    """Tests that move the clock: beside the start of a worker, 50 in a row, and 365 days."""
    rounds = bench.size.worker_rounds
    with EmbeddedRedis() as server:
        shop = Shop(bench.folder / "travel", server)
        starts, days = bench.in_turns(
            DAY.title,
            rounds,
            (True, False),
            lambda is_worker: 1000 * (shop.start_worker() if is_worker else shop.test()),
            warm_up=True,
        )
        yield DAY.figure(starts, days)
        suites = sorted(sum(shop.test() for _ in range(TESTS)) for _ in range(rounds))
        yield SUITE.figure([suites[len(suites) // 2]], [suites[-1]])
        years = sorted(shop.test(DAYS) for _ in range(rounds))
        yield YEAR.figure([years[len(years) // 2]], [years[-1]])
