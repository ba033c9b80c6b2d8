"""What an error reply of Redis means: the one table of it. No I/O.

A worker outlives each of them: it drops the connection, or makes the same call later, or goes on
without that call.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from redis import exceptions


class Refusal(Enum):
    """What is to be done about an error reply."""

    #: The server is no master, is starting, or does not take the connection: connect anew.
    RECONNECT = auto()
    #: It refuses all calls, or all that write, for the moment: make the same call later.
    LATER = auto()
    #: It has no memory left: what frees memory goes on.
    FULL = auto()
    #: The account lacks a right: others may have it.
    DENIED = auto()
    #: The call is wrong, or a key has another type: others go on.
    FAULT = auto()


#: By the code of the reply; all others are a FAULT. For a refused login redis-py has a class of
#: its own, which is that of a lost connection.
REFUSALS = {
    "READONLY": Refusal.RECONNECT,
    "UNBLOCKED": Refusal.RECONNECT,
    "MASTERDOWN": Refusal.RECONNECT,
    "LOADING": Refusal.RECONNECT,
    "NOAUTH": Refusal.RECONNECT,
    "WRONGPASS": Refusal.RECONNECT,
    "MAXCLIENTS": Refusal.RECONNECT,
    "BUSY": Refusal.LATER,
    "MISCONF": Refusal.LATER,
    "NOREPLICAS": Refusal.LATER,
    "CLUSTERDOWN": Refusal.LATER,
    "TRYAGAIN": Refusal.LATER,
    "OOM": Refusal.FULL,
    "NOPERM": Refusal.DENIED,
}

#: redis-py cuts the code off from the text where it has a class; older ones keep it nowhere else.
_CLASS_CODES = {
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ReadOnlyError": "READONLY",
    "MasterDownError": "MASTERDOWN",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "AuthenticationError": "NOAUTH",
}

#: Replies without a code of their own: in scripts of all servers, and for one client too many.
_TEXT_CODES = {
    "user executing the script can't": "NOPERM",
    "ACL failure in script": "NOPERM",
    "max number of clients": "MAXCLIENTS",
}

#: The code in a text: at its head, or where a script of Redis 6.2 has met it.
_CODE = re.compile(r"(?:^|@user_script: ?\d+: ?|caused error: )-?([A-Z]{3,})\b")


def code_of(exc: BaseException) -> str:
    """Return the code of an error reply, also of one that a script has met; ``""`` without one."""
    for name in ("code", "status_code"):  # ours, and that of newer redis-py
        code = getattr(exc, name, None)
        if isinstance(code, str) and code not in ("", "ERR"):
            return code
    for name, code in _CLASS_CODES.items():
        if isinstance(exc, getattr(exceptions, name, ())):
            return code
    text = str(exc)
    for part, code in _TEXT_CODES.items():
        if part in text:
            return code
    found = _CODE.search(text)
    return found[1] if found else ""


def refusal_of(exc: BaseException) -> Refusal | None:
    """Return what an error reply means; None for an error that is none."""
    if not isinstance(exc, (exceptions.ResponseError, exceptions.ConnectionError)):
        return None
    refusal = REFUSALS.get(code_of(exc))
    is_reply = isinstance(exc, exceptions.ResponseError)
    return refusal or (Refusal.FAULT if is_reply else None)


def is_full(exc: BaseException) -> bool:
    """Return whether an error says that the server has no memory left."""
    return refusal_of(exc) is Refusal.FULL


def is_denied(exc: BaseException) -> bool:
    """Return whether an error says that the account lacks a right, also inside a script."""
    return refusal_of(exc) is Refusal.DENIED
