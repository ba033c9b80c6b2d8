"""Errors of the broker as sentences for people, without users and passwords."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    RedisError,
    TimeoutError,
)

from celery_delayq.errors import BrokerTimeout, BrokerUnavailable, DelayQError
from celery_delayq.store.scripting.refusals import Refusal, is_denied, refusal_of

#: Errors of the broker, and of the connection to it.
BROKER_ERRORS = (OperationalError, RedisError)

#: redis-py's message when it cannot connect: address and reason.
_CONNECT_ERROR = re.compile(r"Error -?\w+ connecting to (?:unix socket: )?(\S+)\. (.*?)\.?")

#: Connection errors of a server that is up and refuses the login.
_LOGIN_ERRORS = (AuthenticationError, AuthorizationError)

#: Errors of a server that did not answer in time: of redis-py, of ours, and of sockets.
_TIMEOUTS = (TimeoutError, BrokerTimeout, socket.timeout)


def is_away(exc: BaseException) -> bool:
    """Return whether a server could not be reached, or is still starting."""
    own = isinstance(exc, DelayQError) and not isinstance(exc, BrokerUnavailable)
    if own or any(isinstance(each, _LOGIN_ERRORS) for each in _causes(exc)):
        return False
    return isinstance(exc, (ConnectionError, TimeoutError, BusyLoadingError, OperationalError))


def describe_error(exc: BaseException, app: Celery | None = None) -> str:
    """Return an error as a sentence. For a failed connection, add its address without password."""
    if is_denied(exc):
        return f"docs/accounts.md lists the rights that an account of Redis needs: {exc}"
    if refusal_of(exc) is Refusal.LATER:
        return f"Redis refuses calls for the moment: {exc}"
    if not is_away(exc):
        return str(exc)
    match = _CONNECT_ERROR.fullmatch(str(exc))
    if match:
        return f"cannot reach Redis at {match[1]}: {match[2]}"
    causes = [each.strerror for each in _causes(exc) if isinstance(each, OSError)]
    why = next(filter(None, causes), str(exc).rstrip("."))
    address = broker_address(app) if app is not None else ""
    place = f" at {address}" if address else ""
    return f"cannot reach the broker{place}: {why}"


def cure(exc: BaseException) -> str:
    """Return what to do about an error of the connection to the broker.

    "" for another error, also for a refused login: its text already says what to do.
    """
    if isinstance(exc, DelayQError) and exc.__cause__ is not None:
        return cure(exc.__cause__)
    if not is_away(exc):
        return ""
    causes = [*_causes(exc)]
    if any(isinstance(each, BusyLoadingError) for each in causes):
        return "repeat this when it has read its data"
    if any(isinstance(each, _TIMEOUTS) for each in causes):
        return (
            "see whether it hangs or the network loses packets, or raise socket_timeout and "
            "socket_connect_timeout in broker_transport_options"
        )
    return "start it, or correct the broker URL"


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def broker_address(app: Celery) -> str:
    """Return the address of an app's broker, without users and passwords."""
    try:
        with app.connection_for_write() as connection:
            uri = connection.as_uri()
    except Exception:  # a URL may be anything
        return ""
    # Up to the last @: an unquoted password may contain any character.
    return ";".join(re.sub(r"//.*@", "//", each) for each in uri.split(";"))
