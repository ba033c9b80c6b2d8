"""Refusals of time travel: apps, servers, brokers and workers with which no test moves a clock."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import urlsplit

from celery import Celery, current_app
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import TravelError
from celery_delayq.integration import worker
from celery_delayq.model.script_values import to_text
from celery_delayq.store.keys import Keys
from celery_delayq.testing.wait import wait_until

#: The error for a worker beside a test that moves the clock.
WORKER_TEXT: Final = (
    "a test has either delayq_time, which runs the tasks itself, or a real worker, whose clock "
    "does not move"
)

#: The names of Celery's app where no app is made, and of one that pytest-celery's plugin imports.
_APPS_OF_LIBRARIES: Final = ("default", "celery_test_app")

#: Patterns of the keys and channels of any key prefix.
_ANY: Final = Keys("*")
_SCAN_COUNT: Final = 10_000
#: Time in which Redis notices that a process has ended.
_DISCONNECT_SECONDS: Final = 1.0


def checked_app(app: Celery | None) -> Celery:
    """Return the app, or Celery's current app for None. Raise TravelError if there is none."""
    found: Any = current_app if app is None else app
    found = found._get_current_object() if hasattr(found, "_get_current_object") else found
    if not isinstance(found, Celery):
        raise TravelError(f"{found!r} is no Celery app: let the fixture delayq_app return one")
    if app is None and found.main in _APPS_OF_LIBRARIES:
        raise TravelError(
            "no Celery app is known yet: import the app in conftest.py, or let the fixture "
            "delayq_app return it"
        )
    return found


def check_server(server: EmbeddedRedis, scheme: str) -> None:
    """Raise TravelError if the server is not private, or no broker of *scheme* can travel."""
    if not isinstance(server, EmbeddedRedis):
        raise TravelError(
            f"{server!r} is not a private server: delayq_time moves the clock of an "
            "EmbeddedRedis alone, never that of a Redis which others use"
        )
    if scheme not in ("delayq+redis", "redis"):
        raise TravelError(
            f"the scheme {scheme!r} has a broker whose clock cannot be moved: delayq_time "
            "needs delayq+redis. Tests on RabbitMQ or a Redis Cluster start real workers"
        )


def check_broker(app: Celery, broker_url: str) -> None:
    """Raise TravelError if the app's broker is not *broker_url*."""
    for connect in (app.connection_for_write, app.connection_for_read):
        with connect() as connection:
            shown = connection.as_uri()
        if _place(shown) != _place(broker_url):
            raise TravelError(
                f"the broker of {app.main or 'the app'} is {shown}, and delayq_time moves the clock"
                f" of the private server {_place(broker_url)} alone: let nothing set the URL of "
                "the broker in a test with delayq_time"
            )


def _place(url: str) -> str:
    found = urlsplit(url)
    return f"{found.scheme.removeprefix('delayq+')}://{found.hostname}:{found.port}"


def check_no_worker_here() -> None:
    """Raise TravelError if a worker runs in this process."""
    if worker.is_running():
        raise TravelError(f"{WORKER_TEXT}: one runs in this process, such as celery_worker")


def check_no_worker_on(client: Redis) -> None:
    """Raise TravelError if a worker or dispatcher of another process uses the server."""
    try:
        wait_until(lambda: not client.pubsub_channels(_ANY.fleet), _DISCONNECT_SECONDS)
    except TimeoutError as exc:
        text = "a worker or dispatcher listens to this private Redis"
        raise TravelError(f"{WORKER_TEXT}: {text}") from exc
    for key in client.scan_iter(_ANY.worker_id("*"), count=_SCAN_COUNT):
        name = to_text(key).rpartition(":")[2]
        if name.split(".")[-2:-1] != [str(os.getpid())]:
            raise TravelError(f"{WORKER_TEXT}: {name} uses this private Redis, or was just killed")
