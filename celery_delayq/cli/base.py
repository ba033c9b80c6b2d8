"""What all commands share: how errors are told, and the object of the app."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.app import DelayQ
from celery_delayq.cli.words import spelled
from celery_delayq.errors import DelayQError

F = TypeVar("F", bound=Callable[..., Any])


class Refused(click.ClickException):
    """An error that is told in one line, without a traceback."""


def reporting_errors(command: F) -> F:
    """Tell what went wrong in one line and exit with 1."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (DelayQError, OperationalError, RedisError) as exc:
            raise Refused(spelled(str(exc))) from exc

    return wrapper  # type: ignore[return-value]


def delayq_of(ctx: click.Context) -> DelayQ:
    """Return the object of the app that ``-A`` names."""
    return DelayQ.of(ctx.obj.app)
