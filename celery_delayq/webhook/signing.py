"""Signs webhooks, and checks signatures for receivers. Needs the standard library only.

The format is that of the Standard Webhooks specification (https://www.standardwebhooks.com), which
has libraries in other languages: the header ``Webhook-Signature`` is ``v1,`` and the base64 of the
HMAC-SHA256 over id, timestamp and body with dots between them.
"""

from __future__ import annotations

import binascii
import hmac
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping

from celery_delayq.errors import ConfigError, InvalidSignature

ID_HEADER = "Webhook-Id"
TIMESTAMP_HEADER = "Webhook-Timestamp"
SIGNATURE_HEADER = "Webhook-Signature"

#: A secret with this prefix is base64, by the specification.
_SECRET_PREFIX = "whsec_"

_SECONDS = re.compile(r"[0-9]{1,15}", re.ASCII)


def key_of(secret: str | bytes) -> bytes:
    """Return the key of a secret: its bytes, or the decoded base64 after ``whsec_``.

    Raises
    ------
    ConfigError
        The secret is empty, or no base64. The text does not show the secret.
    """
    if isinstance(secret, str) and secret.startswith(_SECRET_PREFIX):
        try:
            key = b64decode(secret[len(_SECRET_PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError("webhook secret: the text after whsec_ is no base64") from None
    elif isinstance(secret, str):
        key = secret.encode()
    elif isinstance(secret, bytes):
        key = secret
    else:
        raise ConfigError(
            f"webhook secret of type {type(secret).__name__}: expected a text or bytes"
        )
    if not key:
        raise ConfigError("webhook secret: it is empty; expected 24 random bytes or more")
    return key


def sign(secret: str | bytes, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of one attempt, for the header.

    Parameters
    ----------
    timestamp : int
        Seconds since 1970.
    """
    signed = f"{id}.{timestamp}.".encode(errors="surrogatepass") + body
    digest = hmac.digest(key_of(secret), signed, "sha256")
    return "v1," + b64encode(digest).decode()


def verify(
    secret: str | bytes, headers: Mapping[str, str], body: bytes, tolerance: float = 300
) -> str:
    """Check a received webhook, and return its id.

    Repeated deliveries have the same id: a receiver that stores the ids can skip them.

    Parameters
    ----------
    headers : Mapping[str, str]
        The headers of the request; upper and lower case do not matter.
    body : bytes
        The body as received, not parsed.
    tolerance : float
        Largest difference in seconds between the timestamp and the clock of this host.

    Raises
    ------
    InvalidSignature
        The signature is missing or wrong, or the timestamp is too old.
    """
    if not isinstance(body, bytes):
        raise InvalidSignature(
            f"body of type {type(body).__name__}: expected the bytes of the request"
        )
    given = {str(name).lower(): value for name, value in headers.items()}
    for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER):
        if not given.get(name.lower()) or not isinstance(given[name.lower()], str):
            raise InvalidSignature(f"not signed: there is no {name}, or it is no text")
    id, timestamp, signatures = (
        given[name.lower()] for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
    )
    if not _SECONDS.fullmatch(timestamp):
        raise InvalidSignature(f"{TIMESTAMP_HEADER} is no number of seconds since 1970")
    expected = sign(secret, id, int(timestamp), body).encode()
    # A request may have several signatures while a secret is replaced. All are compared, each in
    # constant time.
    found = [each.encode(errors="surrogatepass") for each in signatures.split()]
    matches = [hmac.compare_digest(expected, each) for each in found]
    if not any(matches):
        raise InvalidSignature(
            f"{SIGNATURE_HEADER} does not fit: another secret, or it was changed"
        )
    age = time.time() - int(timestamp)
    if abs(age) > tolerance:
        raise InvalidSignature(
            f"signed {abs(age):.0f} s {'ago' if age > 0 else 'from now'}: more than {tolerance:g} s"
        )
    return id
