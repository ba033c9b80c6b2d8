"""What all commands share: how errors are told, and the object of the app."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from celery import Celery
from kombu.exceptions import OperationalError

from celery_delayq.app import DelayQ
from celery_delayq.cli.words import spelled
from celery_delayq.errors import (
    BrokerUnavailable,
    DelayQError,
    InvalidCursor,
    InvalidETA,
    InvalidFilter,
)
from celery_delayq.store.scripting.runner import is_denied

F = TypeVar("F", bound=Callable[..., Any])

#: What redis-py says of where it could not connect to, and why.
_CONNECTING = re.compile(r"Error -?\w+ connecting to (?:unix socket: )?(\S+)\. (.*?)\.?")


class Refused(click.ClickException):
    """An error that is told in one line, without a traceback."""


class WrongUse(Refused):
    """The same, of what was asked wrongly: it ends with 2, as click's own errors do."""

    exit_code = 2


def reporting_errors(command: F) -> F:
    """Tell what went wrong in one line; exit with 2 where it was asked wrongly, else with 1."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (InvalidCursor, InvalidETA, InvalidFilter) as exc:
            raise click.UsageError(spelled(str(exc))) from exc
        except (DelayQError, OperationalError) as exc:
            raise Refused(spelled(told(exc, _app()))) from exc

    return wrapper  # type: ignore[return-value]


def is_away(exc: BaseException) -> bool:
    """Return whether a server could not be reached, or is about to start."""
    if isinstance(exc, BrokerUnavailable):
        return True
    return isinstance(exc, OperationalError) and not any(
        isinstance(each, DelayQError) and not isinstance(each, BrokerUnavailable)
        for each in _causes(exc)
    )


def told(exc: BaseException, app: Celery | None = None) -> str:
    """Return an error as a sentence; of a connection with its address, which has no password."""
    if is_denied(exc):
        return f"docs/accounts.md lists the rights that an account of Redis needs: {exc}"
    if not is_away(exc):
        return str(exc)
    match = _CONNECTING.fullmatch(str(exc))
    if match:
        return f"cannot reach Redis at {match[1]}: {match[2]}"
    where = "" if app is None else _address(app)
    causes = [each.strerror for each in _causes(exc) if isinstance(each, OSError)]
    why = next(filter(None, causes), str(exc).rstrip("."))
    return f"cannot reach the broker{where and f' at {where}'}: {why}"


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def _address(app: Celery) -> str:
    """Return where the broker of an app is, without users and passwords."""
    try:
        with app.connection_for_write() as connection:
            uri = connection.as_uri()
    except Exception:  # a URL may be anything
        return ""
    # Up to the last @: a password that should have been quoted may have anything in it.
    return ";".join(re.sub(r"//.*@", "//", each) for each in uri.split(";"))


def _app() -> Celery | None:
    """Return the app of the command that runs; jobs of Spark have none."""
    context = click.get_current_context(silent=True)
    return getattr(context and context.obj, "app", None)


def delayq_of(ctx: click.Context) -> DelayQ:
    """Return the object of the app that ``-A`` names.

    Raises
    ------
    click.UsageError
        There is neither an app nor anything else that says which broker is meant.
    """
    app = ctx.obj.app
    if not ctx.find_root().params.get("app"):
        conf = app.conf
        if not (conf.broker_write_url or conf.broker_transport):
            raise click.UsageError(
                "which app? Give its module before the command, such as: celery -A shop "
                f"{' '.join(ctx.command_path.split()[1:])}"
            )
    return DelayQ.of(app)
