"""Fill a schedule with very many entries by ``schedule_many`` in several processes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from celery_delayq.testing import ManagedProcess

from .app import Settings
from .model import BenchError
from .processes import ROOT

#: A third process would only wait for Redis and the others.
PROCESSES = 2

#: Seconds for the whole filling.
TIMEOUT = 3600.0

DAY = 86_400.0

#: An odd factor gives each number its own id; ids are spread like those of Celery.
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835


def id_of(number: int) -> str:
    """Return the id of an entry by its number."""
    return f"{number * _SPREAD % 2**128:032x}"


def some_day() -> float:
    """Return a countdown of one to two days, in seconds."""
    return DAY * (1 + random.random())


def remind(order: int, text: str) -> None:
    """The task of the entries; never runs here."""


def fill(settings: Settings, task: str, numbers: range, folder: Path) -> None:
    """Schedule entries of a task in one to two days, with the ids of these numbers."""
    share = -(-len(numbers) // PROCESSES)
    with ExitStack() as stack:
        processes = []
        for first in numbers[::share]:
            last = min(first + share, numbers.stop)
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.filling",
                task,
                str(first),
                str(last),
            ]
            log, env = folder / f"filling-{first}.log", settings.to_environment()
            process = ManagedProcess(command, env=env, cwd=ROOT, log_file=log)
            processes.append(stack.enter_context(process))
        for each in processes:
            if each.wait(TIMEOUT):
                raise BenchError(f"cannot fill the schedule: {each.log[-500:]}")


def _items(numbers: Sequence[int]) -> Iterator[Item]:
    for n in numbers:
        yield Item(args=(n, "x" * 200), countdown=some_day(), id=id_of(n))


def main(task: str, first: str, last: str) -> None:
    """Schedule the entries of a range of numbers."""
    settings = Settings.from_environment()
    with (
        Celery("shop", broker=settings.broker, set_as_current=False) as app,
        DelayQ(app) as delayq,
    ):
        app.conf.task_ignore_result = True
        app.task(name=task)(remind)
        delayq.schedule_many(_items(range(int(first), int(last))), task=task)


if __name__ == "__main__":
    main(*sys.argv[1:])
