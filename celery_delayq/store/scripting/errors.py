"""Translates redis-py's errors into ours, which other rooms can catch without redis-py. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.sentinel import MasterNotFoundError

from celery_delayq.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    CommandRefused,
    NotAllowed,
    StoreFull,
)
from celery_delayq.store.scripting.refusals import Refusal, code_of, refusal_of
from celery_delayq.store.scripting.scripts import with_place

_LOGIN_ADVICE: Final = (
    "check user and password in the URL of the broker, and those that Redis has (ACL LIST, "
    "requirepass)"
)

_FULL_TEXT: Final = (
    "Redis has no memory left and refused a command (%s); raise maxmemory or let tasks be "
    "consumed; a task that could not be sent is stored nowhere: send it again"
)

#: Errors of an outage: Redis cannot be reached, or is no master. The same call may succeed later.
OUTAGE_ERRORS: Final = (BrokerUnavailable, OSError)

# Each class is also a subclass of redis-py's: kombu and Celery reconnect and retry by that class.


class _Coded(RedisError):
    """An error reply with its code, which redis-py removes from some texts."""

    code = ""


class _Unavailable(BrokerUnavailable, ConnectionError):
    __doc__ = BrokerUnavailable.__doc__


class _TimedOut(BrokerTimeout, TimeoutError):
    __doc__ = BrokerTimeout.__doc__


class _Refused(CommandRefused, ResponseError, _Coded):
    __doc__ = CommandRefused.__doc__


class _Full(StoreFull, CommandRefused, ResponseError, _Coded):
    __doc__ = StoreFull.__doc__


class UnusableConnection(BrokerUnavailable, _Coded):
    """The server refuses an open connection, for example since it is no master any more.

    This is not redis-py's ConnectionError, after which redis-py would try the same server again.
    """


class _RefusedForNow(BrokerUnavailable, ResponseError, _Coded):
    __doc__ = BrokerUnavailable.__doc__


#: The class of an error reply by its :class:`Refusal`; by default :class:`CommandRefused`.
_REFUSAL_CLASSES: dict[Refusal | None, type[_Coded]] = {
    Refusal.RECONNECT: UnusableConnection,
    Refusal.LATER: _RefusedForNow,
    Refusal.FULL: _Full,
}


class _LoginRefused(NotAllowed, BrokerUnavailable, AuthenticationError):
    """Redis refuses user or password. A worker treats this as an outage, and tries again."""


def error_of(exc: RedisError) -> RedisError:
    """Return our error for an error of redis-py; *exc* if we have none."""
    # NoScriptError stays as it is: a script call then sends the source.
    if isinstance(exc, (BrokerUnavailable, CommandRefused, StoreFull, NoScriptError)):
        return exc
    if isinstance(exc, (AuthenticationError, AuthorizationError)):
        return _LoginRefused(f"{str(exc).rstrip('.')}; {_LOGIN_ADVICE}")
    if isinstance(exc, TimeoutError):
        return _TimedOut(*exc.args)
    if isinstance(exc, MasterNotFoundError):
        return _Unavailable(_no_master(str(exc)))
    if isinstance(exc, ConnectionError):
        return _Unavailable(*exc.args)
    if not isinstance(exc, ResponseError):
        return exc
    refusal = refusal_of(exc)
    text = _FULL_TEXT % exc if refusal is Refusal.FULL else with_place(str(exc))
    error = _REFUSAL_CLASSES.get(refusal, _Refused)(text)
    error.code = code_of(exc)
    return error


def _no_master(text: str) -> str:
    """Return why Sentinel gives no master, without the objects that redis-py shows."""
    what, _, objects = text.partition(" : ")
    silent = [f"{host}:{port}" for host, port in re.findall(r"\bhost=([^,]+),port=(\d+)", objects)]
    advice = f"no answer from {', '.join(silent)}" if silent else "check master_name"
    return f"{what}; {advice}"


def unavailable(why: object) -> BrokerUnavailable:
    """Return the error for a server that must not be used any more, such as a former master."""
    return _Unavailable(str(why))


def raise_ours(exc: BaseException) -> NoReturn:
    """Raise our error for an error of redis-py; *exc* if we have none."""
    error = error_of(exc) if isinstance(exc, RedisError) else exc
    if error is exc:
        raise exc
    raise error from exc


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise our errors in place of redis-py's. For connections used without a client."""
    try:
        yield
    except RedisError as exc:
        raise_ours(exc)
