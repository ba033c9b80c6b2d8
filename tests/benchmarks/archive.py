"""How fast dead letters are archived: ``python -m tests.benchmarks.archive [number]``.

Dead letters of about 2 KB, half message and half traceback, go to SQLite and to PostgreSQL (both as
durable as by default), come back, and go again, when their rows are there already.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from tests.support.dead_letters import fill
from tests.support.postgres import PostgresServer, postgres_programs


def _timed(what: str, number: int, run: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{what:<22}{wall:7.1f} s {number / wall:9,.0f} dead letters/s "
        f"{cpu / number * 1e6:6.0f} µs of CPU in this process for each",
        flush=True,
    )


def measure(delayq: DelayQ, kind: str, url: str, number: int) -> None:
    """Measure with one database."""
    delayq.archive_dead(url)  # what is imported, and the table, is not for each dead letter
    fill(delayq, number, size=400, age=number / 1000 + 60)
    _timed(f"{kind}: archive", number, lambda: delayq.archive_dead(url))
    _timed(f"{kind}: restore", number, lambda: delayq.import_dead(url))
    _timed(f"{kind}: archive again", number, lambda: delayq.archive_dead(url))


def main(number: int) -> None:
    """Measure with both."""
    folder = Path(tempfile.mkdtemp(prefix="delayq-archive-"))
    folder.chmod(0o755)
    (folder / "postgres").mkdir()
    postgres = PostgresServer(postgres_programs(), folder / "postgres")
    postgres.command = ["fsync=on" if each == "fsync=off" else each for each in postgres.command]
    try:
        with EmbeddedRedis() as redis, postgres:
            postgres.wait_ready()
            with DelayQ(Celery("archive", broker=redis.url_for("delayq+redis"))) as delayq:
                measure(delayq, "SQLite", f"sqlite:///{folder}/dead.db", number)
                measure(delayq, "PostgreSQL", postgres.new_database(), number)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
