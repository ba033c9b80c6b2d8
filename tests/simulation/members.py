"""Dispatchers as threads of one process: ``python -m tests.simulation.members URL NUMBER``.

The process prints their ids when all are counted, and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

from redis import Redis

from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store

ROOT = Path(__file__).parents[2]


class Members:
    """A process with some members of a fleet, killed when the block ends."""

    def __init__(self, url: str, number: int) -> None:
        command = [sys.executable, "-m", __spec__.name, url, str(number)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        #: The ids of its dispatchers, after they have started.
        self.ids: frozenset[str] = frozenset()

    def wait_ready(self) -> None:
        """Wait until all its dispatchers run."""
        assert self.process.stdout is not None
        self.ids = frozenset(self.process.stdout.readline().split())

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def main() -> None:
    """Run dispatchers until standard input ends."""
    url, number = sys.argv[1], int(sys.argv[2])
    client = Redis.from_url(url)
    keys = Keys(database=cast("int", client.connection_pool.connection_kwargs.get("db", 0)))
    fleet = [
        Dispatcher(Store(Redis.from_url(url), keys, Layout()), Settings()) for _ in range(number)
    ]
    for each in fleet:
        each.start()
    while any(each.tally.last_look is None for each in fleet):
        time.sleep(0.05)
    print(*(each._id for each in fleet), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
