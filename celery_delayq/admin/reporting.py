"""How commands and Spark jobs report errors: one line and an exit code, no traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from celery import Celery

from celery_delayq.errors import DelayQError, InvalidCursor, InvalidETA, InvalidFilter, InvalidPlace
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.utils.text import spelled

F = TypeVar("F", bound=Callable[..., Any])


class Refused(click.ClickException):
    """An error that is printed in one line; the command exits with 1."""


class WrongUse(Refused):
    """The same for wrong options or arguments: the command exits with 2, as click's errors do."""

    exit_code = 2


def reporting_errors(command: F) -> F:
    """Report errors in one line; exit with 2 after wrong use, else with 1.

    A command that returns False also exits with 1: something was not done.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            done = command(*args, **kwargs)
        except (InvalidCursor, InvalidETA, InvalidFilter, InvalidPlace) as exc:
            raise click.UsageError(spelled(str(exc))) from exc
        except (DelayQError, *BROKER_ERRORS) as exc:
            raise Refused(spelled(describe_error(exc, _app()))) from exc
        if done is False:
            raise click.exceptions.Exit(1)

    return wrapper  # type: ignore[return-value]


def _app() -> Celery | None:
    """Return the app of the command that runs; Spark jobs have none."""
    context = click.get_current_context(silent=True)
    return getattr(context and context.obj, "app", None)
