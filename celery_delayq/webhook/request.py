"""What a webhook says, and what its answer means. Policy, no I/O."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import date, datetime, timezone
from datetime import time as time_of_day
from decimal import Decimal
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from celery_delayq.errors import DeliveryFailed, DeliveryRefused, InvalidWebhook
from celery_delayq.utils.credentials import hide
from celery_delayq.webhook.addresses import WebhookUrl
from celery_delayq.webhook.signing import ID, SIGNATURE, TIMESTAMP, sign

#: Answers that are tried again beside those from 500: too slow, too early, too many.
TRIED_AGAIN = frozenset({408, 425, 429})

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: A header's text: printable ASCII that neither begins nor ends with a space.
TEXT = re.compile(r"[!-~]([ \t!-~]*[!-~])?|")
_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_DIGITS = re.compile(r"[0-9]{1,10}")

#: Headers that say how the request is to be read; a call cannot have others.
_OURS = frozenset(
    {
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
        *("expect", "host", "idempotency-key", "keep-alive", "te", "trailer"),
        *("transfer-encoding", "upgrade", "user-agent"),
    }
)
_OUR_PREFIXES = ("webhook-", "proxy-")


class Answer(NamedTuple):
    """What a receiver has said; *text* is the beginning of what came with a failure."""

    status: int
    retry_after: str | None = None
    location: str | None = None
    text: str = ""


def check_headers(headers: Any) -> dict[str, str]:
    """Return the headers of a call.

    Raises
    ------
    InvalidWebhook
        One is no header, or one that is not for the call to say. Values are not shown.
    """
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidWebhook(
            f"webhook headers of type {type(headers).__name__}: expected a mapping of texts"
        )
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidWebhook(f"webhook header {name!r}: that is no name of a header")
        if name.lower() in _OURS or name.lower().startswith(_OUR_PREFIXES):
            raise InvalidWebhook(f"webhook header {name!r}: it is set here; choose another name")
        if not isinstance(value, str) or not TEXT.fullmatch(value):
            raise InvalidWebhook(
                f"webhook header {name!r}: expected a text of printable ASCII without line ends"
            )
    return dict(headers)


def body_of(payload: Any) -> bytes:
    """Return a payload as compact JSON; times, decimal numbers and UUIDs become texts.

    Raises
    ------
    InvalidWebhook
        It cannot be said in JSON.
    """
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidWebhook(f"webhook payload: it cannot be written as JSON: {exc}") from exc
    return text.encode()


def _plain(value: Any) -> str:
    # Not as kombu writes them, which only kombu reads.
    if isinstance(value, (datetime, date, time_of_day)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def retry_after(value: str | None, longest: float) -> float | None:
    """Return the seconds that a ``Retry-After`` asks for, None where it asks for none.

    Parameters
    ----------
    value : str | None
        Seconds, or a time as HTTP writes it. Anything else counts as not given, and so does what
        is over already: the receiver has failed, and is not to be asked at once.
    longest : float
        Seconds; 0 gives no heed to any.
    """
    text = (value or "").strip()
    if _DIGITS.fullmatch(text):
        seconds = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=timezone.utc)
            seconds = moment.timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    wait = min(seconds, longest)
    return wait if wait > 0 else None


def headers_of(id: str, body: bytes, secret: str | bytes | None, user_agent: str) -> dict[str, str]:
    """Return the headers of one attempt that are not the call's."""
    # A header has room for few characters, and a dot would end the id in what is signed.
    key = id if _SAFE_ID.fullmatch(id) else sha256(id.encode(errors="surrogatepass")).hexdigest()
    now = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": user_agent,
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Idempotency-Key": key,
        ID: key,
        TIMESTAMP: str(now),
    }
    if secret is not None:
        headers[SIGNATURE] = sign(secret, key, now, body)
    return headers


def judge(answer: Answer, target: WebhookUrl, max_retry_after: float) -> int:
    """Return the status of a success.

    Raises
    ------
    DeliveryFailed
        It says to try again.
    DeliveryRefused
        It is any other one.
    """
    status = answer.status
    if 200 <= status < 300:
        return status
    text = f": {answer.text}" if answer.text else ""
    if status in TRIED_AGAIN or 500 <= status < 600:
        wait = retry_after(answer.retry_after, max_retry_after)
        raise DeliveryFailed(f"POST {target.shown}: {status}{text}", status, wait)
    if 300 <= status < 400:
        raise DeliveryRefused(
            f"POST {target.shown}: {status}, a redirect to {hide(answer.location or '')}, which is "
            "not followed; call the URL that is meant",
            status,
        )
    raise DeliveryRefused(f"POST {target.shown}: {status}{text}", status)
