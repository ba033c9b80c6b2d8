"""What webhooks send, how they are signed, and what their answers mean."""

from __future__ import annotations

import datetime as dt
import hmac
import pickle
import time
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from email.utils import format_datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest

from celery_delayq.errors import DeliveryFailed, DeliveryRefused, InvalidSignature, InvalidWebhook
from celery_delayq.webhook import sign, verify
from celery_delayq.webhook.addresses import parse
from celery_delayq.webhook.request import (
    _OWN_HEADER_PREFIXES,
    _OWN_HEADERS,
    Answer,
    body_of,
    check_headers,
    headers_of,
    judge,
    retry_after,
)
from tests.unit.webhook.test_webhook import SECRET, UTC

# -- what is sent -----------------------------------------------------------------------------


def test_the_body_is_compact_json_that_others_can_read() -> None:
    payload = {
        "b": [1, 2.5, None, True],
        "a": "ü",
        "at": dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": dt.date(2030, 1, 2),
        "price": Decimal("9.90"),
        "id": UUID(int=7),
    }

    assert body_of(payload) == (
        b'{"b":[1,2.5,null,true],"a":"\\u00fc","at":"2030-01-02T03:04:05+00:00",'
        b'"day":"2030-01-02","price":"9.90","id":"00000000-0000-0000-0000-000000000007"}'
    )
    assert body_of(None) == b"null"
    assert body_of("\ud800") == b'"\\ud800"'


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "payload", [float("nan"), [float("inf")], b"bytes", {1, 2}, object(), {(1, 2): 3}, CIRCLE]
)
def test_what_json_cannot_say_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidWebhook, match="cannot be written as JSON"):
        body_of(payload)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ("X-A: b", "of type str"),
        ([("X-A", "b")], "of type list"),
        *(
            ({"X-A": value}, "'X-A': expected a text")
            for value in (
                "s3cret\r\nX-B: c",
                "s3cret\n",
                " s3cret",
                "s3cret\x00",
                "s3crét",
                7,
                b"x",
            )
        ),
        *(({name: "b"}, "no name of a header") for name in ("X-A:", "X A", "X-A\r\nX-B", "", 7)),
        *(
            ({name: "b"}, "celery_delayq sets this header")
            for name in (
                *("Host", "content-length", "Content-Type", "Transfer-Encoding", "CONNECTION"),
                *("Webhook-Signature", "webhook-id", "Webhook-Anything", "Idempotency-Key"),
                *("User-Agent", "Proxy-Authorization", "Expect", "Upgrade", "Content-Encoding"),
            )
        ),
    ],
)
def test_headers_that_are_none_or_are_ours_are_refused(headers: Any, message: str) -> None:
    with pytest.raises(InvalidWebhook, match=message) as caught:
        check_headers(headers)

    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            *_OWN_HEADERS,
            *headers_of("7", b"{}", SECRET, "agent"),
            *(f"{x}x" for x in _OWN_HEADER_PREFIXES),
        }
    ),
)
def test_no_spelling_of_a_header_of_ours_is_sent(name: str) -> None:
    """Servers read `_` as `-`, and some read other characters so."""
    for spelling in (name, name.upper(), *(name.replace("-", each) for each in "_.~|")):
        with pytest.raises(InvalidWebhook, match="celery_delayq sets this header"):
            check_headers({spelling: "b"})


def test_other_headers_are_sent() -> None:
    others = {"X-Shop": "a b", "Accept": "", "X_Webhook_Id": "7"}
    assert check_headers(others) == others
    assert check_headers(None) == {}


def test_the_id_of_the_task_is_the_idempotency_key() -> None:
    headers = headers_of("0d1b-7", b"{}", None, "agent")

    assert headers["Webhook-Id"] == headers["Idempotency-Key"] == "0d1b-7"
    assert "Webhook-Signature" not in headers


@pytest.mark.parametrize("id", ["a.b", "a\r\nX: y", "ü", "x" * 300, "", "\ud800"])
def test_an_id_that_no_header_can_hold_is_hashed(id: str) -> None:
    headers = headers_of(id, b"{}", SECRET, "agent")

    expected = sha256(id.encode(errors="surrogatepass")).hexdigest()
    assert headers["Webhook-Id"] == headers["Idempotency-Key"] == expected
    assert verify(SECRET, headers, b"{}") == expected


# -- signatures -------------------------------------------------------------------------------


def test_a_signature_is_that_of_the_standard_webhooks_specification() -> None:
    # The example of its reference libraries.
    signature = sign(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", ["s3cret", b"s3cret"])
def test_a_secret_that_is_no_base64_is_taken_as_it_is(secret: str | bytes) -> None:
    digest = hmac.new(b"s3cret", b"id.1.{}", sha256).digest()

    assert sign(secret, "id", 1, b"{}") == "v1," + b64encode(digest).decode()


def signed(body: bytes = b"{}", secret: str = SECRET, **changed: Any) -> dict[str, str]:
    headers = {name.lower(): value for name, value in headers_of("7", body, secret, "a").items()}
    headers.update({f"webhook-{name}": value or "" for name, value in changed.items()})
    return headers


def test_the_receiver_gets_the_id_of_what_is_signed() -> None:
    assert verify(SECRET, signed(), b"{}") == "7"
    assert verify(SECRET, headers_of("7", b"{}", SECRET, "a"), b"{}") == "7"


def test_one_of_several_signatures_is_enough() -> None:
    both = f"v1,b2xk v1a,YXN5bQ== {signed()['webhook-signature']}"

    assert verify(SECRET, signed(signature=both), b"{}") == "7"


def at(seconds: float) -> dict[str, str]:
    """Return the headers of what was signed so many seconds ago."""
    timestamp = int(time.time() - seconds)
    return signed(timestamp=str(timestamp), signature=sign(SECRET, "7", timestamp, b"{}"))


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({}, b"[]", "does not fit"),
        *(
            (changed, b"{}", "does not fit")
            for changed in (
                *({"secret": "another"}, {"id": "8"}, {"timestamp": "1"}, {"signature": "v1,"}),
                *({"signature": "v1,ü"}, {"signature": "\ud800"}, {"signature": " "}),
            )
        ),
        ({"signature": None}, b"{}", "no Webhook-Signature"),
        ({"id": None}, b"{}", "no Webhook-Id"),
        ({"timestamp": None}, b"{}", "no Webhook-Timestamp"),
        ({"id": b"7"}, b"{}", "is no text"),
        *(
            ({"timestamp": timestamp}, b"{}", "no number of seconds")
            for timestamp in ("1e9", "-1", "٣")
        ),
        ({}, "{}", "of type str"),
        (dict, b"{}", "not signed"),
        (lambda: at(310), b"{}", r"signed 3\d\d s ago"),
        (lambda: at(-310), b"{}", r"signed 3\d\d s from now"),
    ],
)
def test_what_is_not_signed_as_it_should_be_is_refused(
    headers: dict[str, Any] | Callable[[], Any], body: Any, message: str
) -> None:
    found = headers() if callable(headers) else signed(**headers)
    with pytest.raises(InvalidSignature, match=message) as caught:
        verify(SECRET, found, body)

    assert SECRET not in str(caught.value)


def test_the_tolerance_is_the_receivers_choice() -> None:
    assert verify(SECRET, at(310), b"{}", tolerance=400) == "7"


# -- answers ----------------------------------------------------------------------------------

TARGET = parse("https://hooks.example.com/orders?token=s3cret")


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_success_is_done(status: int) -> None:
    assert judge(Answer(status), TARGET, 60) == status


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599])
@pytest.mark.parametrize(("retry_after", "wait"), [(None, None), ("7", 7)])
def test_what_may_pass_is_tried_again(
    status: int, retry_after: str | None, wait: float | None
) -> None:
    with pytest.raises(DeliveryFailed, match=f"{status}: so sorry") as caught:
        judge(Answer(status, retry_after, text="so sorry"), TARGET, 60)

    assert (caught.value.status, caught.value.retry_after) == (status, wait)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        *(
            (status, str(status))
            for status in (101, 400, 401, 403, 404, 409, 410, 413, 422, 451, 600, 999)
        ),
        *(
            (status, r"to 'http://…@169\.254\.169\.254/meta'")
            for status in (300, 301, 302, 303, 304, 307, 308)
        ),
    ],
)
def test_what_will_not_pass_is_refused(status: int, message: str) -> None:
    answer = Answer(status, "5", location="http://user:s3cret@169.254.169.254/meta?s3cret")

    with pytest.raises(DeliveryRefused, match=message) as caught:
        judge(answer, TARGET, 60)

    assert caught.value.status == status
    assert "s3cret" not in str(caught.value)


def in_seconds(seconds: float) -> str:
    return format_datetime(dt.datetime.now(UTC) + dt.timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", 5),
        (" 5 ", 5),
        ("100000", 60),
        ("9999999999", 60),
        (lambda: in_seconds(30), pytest.approx(30, abs=5)),
        (lambda: in_seconds(3000), 60),
        (lambda: in_seconds(30).replace("GMT", ""), pytest.approx(30, abs=5)),
        (lambda: in_seconds(-30), None),
        *((value, None) for value in ("0", "-5", "5.5", "5, 6", "9" * 5000, "٣", "soon", "", None)),
        ("Wed, 99 Foo 2030 99:99:99 GMT", None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_time_and_else_left_alone(
    value: str | Callable[[], str] | None, expected: Any
) -> None:
    assert retry_after(value() if callable(value) else value, 60) == expected


def test_a_receiver_that_may_ask_for_no_wait_is_not_heeded() -> None:
    assert retry_after("5", 0) is None


@pytest.mark.parametrize(
    "exc",
    [
        DeliveryFailed("503", 503, 7.0),
        DeliveryRefused("404", 404),
        InvalidWebhook("no"),
        InvalidSignature("no"),
    ],
)
def test_errors_go_through_result_backends(exc: Exception) -> None:
    copy = pickle.loads(pickle.dumps(exc))

    assert (type(copy), copy.args, vars(copy)) == (type(exc), exc.args, vars(exc))
