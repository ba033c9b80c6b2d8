"""Headers and body of a webhook, and the meaning of the answer. Policy, no I/O."""

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
from celery_delayq.webhook.signing import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

#: Statuses below 500 that are tried again: too slow, too early, too many requests.
RETRIED_STATUSES = frozenset({408, 425, 429})

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: The value of a header: printable ASCII that neither begins nor ends with a space.
HEADER_TEXT = re.compile(r"[!-~]([ \t!-~]*[!-~])?|")
_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_DIGITS = re.compile(r"[0-9]{1,10}")

#: Headers that only this module may set.
_OWN_HEADERS = frozenset(
    {
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
        *("expect", "host", "idempotency-key", "keep-alive", "te", "trailer"),
        *("transfer-encoding", "upgrade", "user-agent"),
    }
)
_OWN_HEADER_PREFIXES = ("webhook-", "proxy-")
_NON_ALPHANUMERIC = re.compile(r"[^a-z0-9]")


class Answer(NamedTuple):
    """The answer of a receiver; *text* is the beginning of the body of a failure."""

    status: int
    retry_after: str | None = None
    location: str | None = None
    text: str = ""


def check_headers(headers: Any) -> dict[str, str]:
    """Return the headers of a call.

    Raises
    ------
    InvalidWebhook
        A header is invalid, or only this module may set it. The text does not show values.
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
        # Servers that turn header names into variables, as for CGI, map other characters to one.
        read_as = _NON_ALPHANUMERIC.sub("-", name.lower())
        if read_as in _OWN_HEADERS or read_as.startswith(_OWN_HEADER_PREFIXES):
            raise InvalidWebhook(
                f"webhook header {name!r}: celery_delayq sets this header; choose another name"
            )
        if not isinstance(value, str) or not HEADER_TEXT.fullmatch(value):
            raise InvalidWebhook(
                f"webhook header {name!r}: expected a text of printable ASCII without line ends"
            )
    return dict(headers)


def body_of(payload: Any) -> bytes:
    """Return a payload as compact JSON; times, decimal numbers and UUIDs become texts.

    Raises
    ------
    InvalidWebhook
        JSON cannot represent the payload.
    """
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False, default=_json_text)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidWebhook(f"webhook payload: it cannot be written as JSON: {exc}") from exc
    return text.encode()


def _json_text(value: Any) -> str:
    # kombu's own format of these types is of no use to receivers.
    if isinstance(value, (datetime, date, time_of_day)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def retry_after(value: str | None, longest: float) -> float | None:
    """Return the wait in seconds that a ``Retry-After`` asks for, or None.

    Parameters
    ----------
    value : str | None
        Seconds, or a time in HTTP's format. Any other value, and a time in the past, is ignored:
        the retry policy decides.
    longest : float
        Longest wait in seconds; 0 ignores the header.
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
    """Return the headers of one attempt, without those of the call."""
    # A header allows few characters, and the signed text has a dot after the id.
    key = id if _SAFE_ID.fullmatch(id) else sha256(id.encode(errors="surrogatepass")).hexdigest()
    now = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": user_agent,
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Idempotency-Key": key,
        ID_HEADER: key,
        TIMESTAMP_HEADER: str(now),
    }
    if secret is not None:
        headers[SIGNATURE_HEADER] = sign(secret, key, now, body)
    return headers


def judge(answer: Answer, target: WebhookUrl, max_retry_after: float) -> int:
    """Return the status of a success.

    Raises
    ------
    DeliveryFailed
        The status asks for another attempt.
    DeliveryRefused
        Any other status.
    """
    status = answer.status
    if 200 <= status < 300:
        return status
    text = f": {answer.text}" if answer.text else ""
    if status in RETRIED_STATUSES or 500 <= status < 600:
        wait = retry_after(answer.retry_after, max_retry_after)
        raise DeliveryFailed(f"POST {target.shown}: {status}{text}", status, wait)
    if 300 <= status < 400:
        raise DeliveryRefused(
            f"POST {target.shown}: {status}, a redirect to {hide(answer.location or '')}, which is "
            "not followed; give the final URL",
            status,
        )
    raise DeliveryRefused(f"POST {target.shown}: {status}{text}", status)
