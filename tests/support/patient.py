"""A sound server, URL and app settings for ``doctor``, of which a test spoils one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from tests.support.scene import StartWorker, start_worker


@dataclass
class Patient:
    """A good set-up, which a fault changes: server, URL, and settings of the app."""

    server: EmbeddedRedis
    client: Redis
    stack: ExitStack
    start: StartWorker
    make_app: Callable[..., Any]
    broker: str
    conf: dict[str, Any] = field(default_factory=dict)
    delayq: dict[str, Any] = field(default_factory=dict)
    at_least_once: bool = False

    def app(self) -> Any:
        app = self.make_app(
            extension=False,
            broker=self.broker,
            broker_transport_options={"delayq": self.delayq},
        )
        DelayQ(app, at_least_once=self.at_least_once)
        app.conf.update(self.conf)
        return app

    def worker(self, app: str = "delayq_tasks", **options: Any) -> Any:
        return start_worker(self.start, app, "threads", broker_url=self.broker, **options)
