"""The exit codes of commands and Spark jobs, and their errors as one line without a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from celery import Celery

from celery_delayq.errors import DelayQError, InvalidCursor, InvalidETA, InvalidFilter, InvalidPlace
from celery_delayq.store.error_text import BROKER_ERRORS, cure, describe_error
from celery_delayq.utils.doc_pages import with_addresses
from celery_delayq.utils.text import spelled

F = TypeVar("F", bound=Callable[..., Any])


class Refused(click.ClickException):
    """An error that is printed as one line. The command exits with 1."""


class WrongUse(Refused):
    """An error for invalid options or arguments. The command exits with 2, as click does."""

    exit_code = 2


def reporting_errors(command: F) -> F:
    """Report errors as one line. Exit with 2 for invalid use, otherwise with 1.

    A command that returns False also exits with 1: some of its work was not done.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            done = command(*args, **kwargs)
        except (InvalidCursor, InvalidETA, InvalidFilter, InvalidPlace) as exc:
            raise click.UsageError(spelled(str(exc))) from exc
        except (DelayQError, *BROKER_ERRORS) as exc:
            text = "; ".join(filter(None, (describe_error(exc, _app()), cure(exc))))
            raise Refused(spelled(with_addresses(text))) from exc
        if done is False:
            raise click.exceptions.Exit(1)

    return wrapper  # type: ignore[return-value]


def _app() -> Celery | None:
    """Return the app of the current command; None in Spark jobs."""
    context = click.get_current_context(silent=True)
    return getattr(context and context.obj, "app", None)
