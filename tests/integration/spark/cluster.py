"""A Spark on a cluster, whose executors are processes of their own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from tests.integration.spark import jobs
from tests.integration.spark.driver import Driver, JobFailed
from tests.support import TIMEOUT

#: Passwords by owner; all but one are valid.
_OWNERS = ("driver", "executors", "option", "wrong", "database")
SECRETS = {owner: f"hunter2-of-{owner}" for owner in _OWNERS}


class Attempt(NamedTuple):
    """One attempt of a Spark task.

    The *reason* of its end is None while it runs; the *error* is ``""`` unless one was raised.
    """

    part: int
    executor: str
    speculative: bool
    reason: str | None
    error: str


class Cluster:
    """A driver with two executors on hosts of their own, and a Redis with passwords.

    Attributes
    ----------
    options
        Where the queue is, without a password.
    delayq
        A client beside Spark.
    """

    def __init__(self, driver: Driver, server: EmbeddedRedis, folder: Path) -> None:
        self._driver = driver
        self._folder = folder
        self.do = driver.do
        self.redis = server.client()
        self.port = server.port
        self.options = {"url": f"redis://127.0.0.1:{server.port}/0"}
        app = Celery("tests", broker=server.url_for("delayq+redis"), set_as_current=False)
        self.delayq = DelayQ(app)
        self._told = 0

    @property
    def log(self) -> str:
        """What the driver has logged."""
        return self._driver.log

    def reset(self) -> None:
        """Make its Redis empty, with all passwords, once the tasks of earlier tests have ended."""
        self.do(jobs.wait_idle)
        names = ("driver", "executors", "option")
        self.redis.acl_setuser(
            "default", enabled=True, passwords=[f"+{SECRETS[name]}" for name in names]
        )
        self.redis.flushall()
        self.redis.script_flush()
        self._told = len(self._settled())

    def accept_passwords_of_executors_only(self) -> None:
        """Let Redis refuse new connections of all others."""
        others = [f"-{SECRETS[name]}" for name in ("driver", "option")]
        self.redis.acl_setuser("default", enabled=True, passwords=others)

    def fails(self, job: Any, *given: Any) -> str:
        """Run a job that fails, and return the text of its error."""
        with pytest.raises(JobFailed) as raised:
            self.do(job, *given)
        return str(raised.value)

    def files(self) -> list[Path]:
        """Return its logs and all other files except programs."""
        files = [path for path in self._folder.rglob("*") if path.suffix not in (".jar", ".lock")]
        return [path for path in files if path.is_file() and path.name != "spark-defaults.conf"]

    def events(self) -> list[Path]:
        """Return the files with events."""
        return [*Path(self._folder, "events").glob("app-*")]

    def attempts(self) -> list[Attempt]:
        """Return the attempts since the begin of the test; all their jobs have ended."""
        found: dict[int, Attempt] = {}
        for event in self._settled()[self._told :]:
            if event["Event"] in ("SparkListenerTaskStart", "SparkListenerTaskEnd"):
                task, why = event["Task Info"], event.get("Task End Reason", {})
                found[task["Task ID"]] = Attempt(
                    task["Index"],
                    task["Executor ID"],
                    task["Speculative"],
                    why.get("Reason"),
                    why.get("Description", ""),
                )
        return [*found.values()]

    def wait_no_connections(self) -> None:
        """Wait until Spark has no connection to Redis."""
        mine = {self.redis.client_id()}

        def left() -> list[Any]:
            return [each for each in self.redis.client_list() if int(each["id"]) not in mine]

        self.delayq.close()
        wait_until(lambda: not left(), TIMEOUT, lambda: f"none to be left: {left()}")

    def close(self) -> None:
        """Close the clients."""
        self.delayq.close()
        self.redis.close()

    def _settled(self) -> list[Any]:
        """Return all events once the last query has ended: Spark writes them late."""

        def settled() -> list[Any] | None:
            whole = self.events()[0].read_text().rpartition("\n")[0]
            found = [*map(json.loads, whole.splitlines())]
            names = Counter(event["Event"].rpartition(".")[2] for event in found)
            begun = names["SparkListenerSQLExecutionStart"]
            return found if begun == names["SparkListenerSQLExecutionEnd"] else None

        return wait_until(settled, TIMEOUT, "events of all that was done") or []
