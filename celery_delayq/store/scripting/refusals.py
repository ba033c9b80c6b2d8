"""The table of Redis' error replies and their meanings. No I/O.

No error reply ends a worker. The worker drops the connection, repeats the call later, or continues
without the call.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from redis import exceptions


class Refusal(Enum):
    """The meaning of an error reply."""

    #: The server is no master, is starting, or refuses the connection. Connect again.
    RECONNECT = auto()
    #: The server refuses all calls, or all writes, for some time. Repeat the call later.
    LATER = auto()
    #: The server has no memory left. Calls that free memory still work.
    FULL = auto()
    #: The account lacks a right. Calls that need other rights still work.
    DENIED = auto()
    #: The call is wrong, or a key has another type. Other calls still work.
    FAULT = auto()


#: By the code of the reply. All other codes are a FAULT. redis-py raises a refused login as a
#: subclass of ConnectionError.
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

#: Codes by redis-py's class. redis-py removes the code from the text of an error with a class, and
#: older versions keep the code nowhere else.
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

#: Codes of replies without a code: missing rights in scripts, and too many clients.
_TEXT_CODES = {
    "user executing the script can't": "NOPERM",
    "ACL failure in script": "NOPERM",
    "max number of clients": "MAXCLIENTS",
}

#: The code in a text: at its beginning, or after the position in a script of Redis 6.2.
_CODE = re.compile(r"(?:^|@user_script: ?\d+: ?|caused error: )-?([A-Z]{3,})\b")


def code_of(exc: BaseException) -> str:
    """Return the code of an error reply, also of one raised in a script; ``""`` without a code."""
    for name in ("code", "status_code"):  # of our errors, and of newer redis-py
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
    """Return the meaning of an error reply; None for another error."""
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
