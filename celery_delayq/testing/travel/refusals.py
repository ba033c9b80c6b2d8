"""Refusals of time travel: apps, servers and brokers with which a test cannot move its clock."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from celery import Celery, current_app

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import TravelError


def checked_app(app: Celery | None) -> Celery:
    """Return the app, or Celery's current app for None. Raise TravelError if there is none."""
    found: Any = current_app if app is None else app
    found = found._get_current_object() if hasattr(found, "_get_current_object") else found
    if not isinstance(found, Celery):
        raise TravelError(f"{found!r} is no Celery app: let the fixture delayq_app return one")
    if app is None and found.main == "default":
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
