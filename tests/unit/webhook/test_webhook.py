"""Webhooks: where they may go, how they are signed, and what an answer means."""

from __future__ import annotations

import datetime as dt
import hmac
import logging
import pickle
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from decimal import Decimal
from email.utils import format_datetime
from hashlib import sha256
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded.ports import free_port
from celery_delayq.errors import (
    ConfigError,
    DeliveryFailed,
    DeliveryRefused,
    InvalidSignature,
    InvalidWebhook,
)
from celery_delayq.webhook import NAME, Webhook, check_url, deliver, sign, verify
from celery_delayq.webhook.addresses import is_allowed, network, parse, resolve
from celery_delayq.webhook.request import (
    Answer,
    body_of,
    check_headers,
    headers_of,
    judge,
    retry_after,
)
from tests.support.receiver import Receiver

UTC = dt.timezone.utc
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


# -- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"allow": []}, "expected the hosts"),
        ({"allow": "hooks.example.com"}, "expected a list"),
        ({"allow": [b"hooks.example.com"]}, "expected the name of a host"),
        ({"allow": ["*"]}, "expected the name of a host"),
        ({"allow": ["*."]}, "expected the name of a host"),
        ({"allow": ["a.*.example.com"]}, "expected the name of a host"),
        ({"allow": ["*.10.0.0.1"]}, "expected the name of a host"),
        ({"allow": ["https://hooks.example.com"]}, "expected the name of a host"),
        ({"allow": ["hooks.example.com/path"]}, "expected the name of a host"),
        ({"allow": ["user@hooks.example.com"]}, "expected the name of a host"),
        ({"allow": ["hooks.example.com:0"]}, "expected the name of a host"),
        ({"allow": ["hooks.example.com:65536"]}, "expected the name of a host"),
        ({"allow": ["hooks.example.com:"]}, "expected the name of a host"),
        ({"allow": ["hööks.example.com"]}, "expected the name of a host"),
        ({"allow": ["2130706433"]}, "expected the name of a host"),
        ({"allow": ["10.0.0.5:8080"]}, r"add allow_networks=\['10\.0\.0\.5'\]"),
        ({"allow": ["[::1]:8080"]}, r"add allow_networks=\['::1'\]"),
        ({"allow_networks": "10.0.0.0/8"}, "expected a list"),
        ({"allow_networks": ["10.0.0.1/8"]}, "host bits"),
        ({"allow_networks": [10]}, "expected networks such as"),
        ({"secret": ""}, "it is empty"),
        ({"secret": b""}, "it is empty"),
        ({"secret": 7}, "of type int"),
        ({"secret": "whsec_no base64"}, "is no base64"),
        ({"allow_http": "yes"}, "True or False"),
        ({"timeout": 0}, "seconds from 0.001 to 3600"),
        ({"timeout": float("nan")}, "seconds from"),
        ({"timeout": True}, "seconds from"),
        ({"connect_timeout": "5"}, "seconds from"),
        ({"max_response": 1.5}, "bytes from 0 to 65536"),
        ({"max_retry_after": -1}, "seconds from 0"),
        ({"user_agent": "shop\r\nX: y"}, "printable ASCII"),
        ({"user_agent": ""}, "printable ASCII"),
        ({"ca_file": ""}, "path of a file"),
    ],
)
def test_wrong_settings_are_refused_with_what_would_be_right(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Webhook(**{"allow": ["hooks.example.com"], **given})

    assert "no base64" not in str(caught.value).replace("is no base64", "")


def test_the_secret_is_not_shown() -> None:
    settings = Webhook(allow=["hooks.example.com"], secret="s3cret")

    assert "s3cret" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(Webhook(allow=("hooks.example.com",), secret="s3cret"))


# -- URLs and the allow list ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("hooks.example.com", "https://hooks.example.com/orders?x=1"),
        ("hooks.example.com", "https://hooks.example.com:443"),
        ("hooks.example.com", "https://HOOKS.Example.com./orders"),
        ("Hooks.Example.com.", "https://hooks.example.com/"),
        ("hooks.example.com:8443", "https://hooks.example.com:8443/"),
        ("hooks.example.com:*", "https://hooks.example.com:8443/"),
        ("hooks.example.com", "http://hooks.example.com/"),
        ("*.example.org", "https://a.example.org/"),
        ("*.example.org", "https://b.a.example.org/"),
        ("my_service.internal", "https://my_service.internal/"),
        ("1.1.1.1", "https://1.1.1.1/"),
        ("2606:4700::1111", "https://[2606:4700:0::1111]/"),
        ("[2606:4700::1111]:8443", "https://[2606:4700::1111]:8443/"),
    ],
)
def test_what_is_on_the_allow_list_may_be_asked(entry: str, url: str) -> None:
    check_url(url, Webhook(allow=["other.example.net", entry], allow_http=True))


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("hooks.example.com", "https://example.com/"),
        ("hooks.example.com", "https://a.hooks.example.com/"),
        ("hooks.example.com", "https://hooks.example.com.evil.net/"),
        ("hooks.example.com", "https://hooks.example.com:8443/"),
        ("hooks.example.com:8443", "https://hooks.example.com/"),
        ("*.example.org", "https://example.org/"),
        ("*.example.org", "https://evilexample.org/"),
        ("*.example.org:8443", "https://a.example.org/"),
        ("*.1.1.example", "https://1.1.1.1/"),
        ("1.1.1.1", "https://[::ffff:1.1.1.1]/"),
    ],
)
def test_what_is_not_on_the_allow_list_is_refused(entry: str, url: str) -> None:
    with pytest.raises(InvalidWebhook, match="is not allowed"):
        check_url(url, Webhook(allow=[entry], allow_http=True))


def test_http_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(InvalidWebhook, match="expected https"):
        check_url("http://hooks.example.com/", Webhook(allow=["hooks.example.com"]))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "of type NoneType: expected a text"),
        (b"https://hooks.example.com/", "of type bytes"),
        ("", "printable ASCII"),
        ("hooks.example.com/orders", "begins with https://"),
        ("//hooks.example.com/orders", "begins with https://"),
        ("https:hooks.example.com", "begins with https://"),
        ("https:///orders", "expected the name of a host"),
        ("ftp://hooks.example.com/", "begins with https://"),
        ("file:///etc/passwd", "begins with https://"),
        ("gopher://hooks.example.com/", "begins with https://"),
        ("javascript://hooks.example.com/", "begins with https://"),
        ("https://user:s3cret@hooks.example.com/", "user or password"),
        ("https://s3cret@hooks.example.com/", "user or password"),
        ("https://@hooks.example.com/", "user or password"),
        ("https://user:s3/cret@hooks.example.com/", "expected the name of a host"),
        ("https://user:s3?cret@hooks.example.com/", "expected the name of a host"),
        ("https://user:s3#cret@hooks.example.com/", "never sent"),
        ("https://hooks.example.com/#s3cret", "never sent"),
        ("https://hooks.example.com:0/", "1 to 65535"),
        ("https://hooks.example.com:65536/", "1 to 65535"),
        ("https://hooks.example.com:/", "expected the name of a host"),
        ("https://hooks.example.com:44a/?s3cret", "expected the name of a host"),
        ("https://hooks.example.com:*/", "1 to 65535"),
        ("https://hooks..example.com/", "expected the name of a host"),
        ("https://-hooks.example.com/", "expected the name of a host"),
        ("https://hooks%2eexample.com/", "expected the name of a host"),
        ("https://*.example.com/", "expected the name of a host"),
        (f"https://{'a' * 64}.example.com/", "expected the name of a host"),
        ("https://2130706433/", "expected the name of a host"),
        ("https://0x7f000001/", "expected the name of a host"),
        ("https://0177.0.0.1/", "expected the name of a host"),
        ("https://127.1/", "expected the name of a host"),
        ("https://[::1/", "cannot be read|expected the name"),
        ("https://[fe80::1%25eth0]/", "cannot be read|expected the name"),
        ("https://[::1]evil.example.com/", "cannot be read|expected the name"),
        ("https://[hooks.example.com]/", "cannot be read|expected the name"),
        ("https://hooks.example.com\\@evil.net/", "printable ASCII"),
        ("https://hooks.example.com/a b", "printable ASCII"),
        ("https://hooks.example.com/\r\nHost: evil", "printable ASCII"),
        (" https://hooks.example.com/", "printable ASCII"),
        ("ht\ntps://hooks.example.com/", "printable ASCII"),
        ("https://hooks.example.com/é", "printable ASCII"),
        ("https://hooks。example.com/", "printable ASCII"),
        ("https://hooks.example.com/" + "x" * 8000, "8,000 are allowed"),
    ],
)
def test_what_is_no_url_of_a_webhook_is_refused_and_shows_no_secret(url: Any, message: str) -> None:
    with pytest.raises(InvalidWebhook, match=message) as caught:
        parse(url)

    assert "s3" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_url_is_shown_without_its_query() -> None:
    target = parse("https://hooks.example.com:8443/orders;a=b/?token=s3cret")

    assert target.shown == "https://hooks.example.com:8443/orders;a=b/"
    assert target.request == "/orders;a=b/?token=s3cret"


# -- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1"),
        *("127.255.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192"),
        *("192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "::8.8.8.8", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254"),
        *("64:ff9b:1::8.8.8.8", "100::1", "2001::1", "2001:0:4136:e378::1", "2001:10::1"),
        *("2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1"),
        *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1"),
    ],
)
def test_no_webhook_goes_to_an_address_that_is_not_public(address: str) -> None:
    assert not is_allowed(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1"),
        *("223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700::1111"),
        *("2001:4860:4860::8888", "2a00:1450::1"),
    ],
)
def test_webhooks_go_to_public_addresses(address: str) -> None:
    assert is_allowed(ip_address(address))


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        *(("127.0.0.1", True), ("::ffff:127.0.0.1", True), ("64:ff9b::127.0.0.1", True)),
        *(("127.1.0.1", False), ("::1", False), ("10.0.0.1", False), ("8.8.8.8", True)),
    ],
)
def test_networks_may_be_allowed_beside(address: str, allowed: bool) -> None:
    assert is_allowed(ip_address(address), [network("127.0.0.0/16")]) is allowed


Names = dict[str, list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """What names resolve to: the first address at the first look-up, and so on; "," for several."""
    known: Names = {}
    ask = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in known:
            return ask(host, port, *args, **kwargs)
        answer = known[name].pop(0) if len(known[name]) > 1 else known[name][0]
        return [found for each in answer.split(",") for found in ask(each, port, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


def soon() -> float:
    return time.monotonic() + 5


@pytest.mark.parametrize(
    "answer", ["127.0.0.1", "1.1.1.1,10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1"]
)
def test_a_host_with_any_forbidden_address_is_refused(names: Names, answer: str) -> None:
    names["hooks.example.com"] = [answer]

    with pytest.raises(InvalidWebhook, match="which is no public address"):
        resolve(parse("https://hooks.example.com/?s3cret"), (), soon())


def test_a_host_is_looked_up_for_public_addresses(names: Names) -> None:
    names["hooks.example.com"] = ["1.1.1.1,2606:4700::1111,1.1.1.1"]

    found = resolve(parse("https://hooks.example.com/"), (), soon())

    assert found == ["1.1.1.1", "2606:4700::1111"]


def test_a_host_that_is_not_found_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    with pytest.raises(DeliveryFailed, match="Temporary failure"):
        resolve(parse("https://hooks.example.com/"), (), soon())


def test_a_look_up_without_an_answer_ends_with_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30) and [])

    with pytest.raises(DeliveryFailed, match="took too long"):
        resolve(parse("https://hooks.example.com/"), (), time.monotonic() + 0.05)
    over.set()


@pytest.fixture
def two_receivers() -> Iterator[tuple[Receiver, Receiver]]:
    """Two servers on one port of two addresses of this machine."""
    port = free_port()
    with (
        Receiver(200, host="127.0.0.1", port=port) as allowed,
        Receiver(200, host="127.0.0.2", port=port) as forbidden,
    ):
        yield allowed, forbidden


def test_a_name_that_changes_after_the_check_leads_only_where_was_checked(
    names: Names, two_receivers: tuple[Receiver, Receiver]
) -> None:
    allowed, forbidden = two_receivers
    names["rebinding.example"] = ["127.0.0.1", "127.0.0.2"]
    settings = Webhook(
        allow=["rebinding.example:*"], allow_http=True, allow_networks=["127.0.0.1/32"]
    )

    deliver(settings, allowed.url(host="rebinding.example"), None, None, "id")
    with pytest.raises(InvalidWebhook, match=r"leads to 127\.0\.0\.2"):
        deliver(settings, allowed.url(host="rebinding.example"), None, None, "id")

    [request] = allowed.requests
    assert request.headers["Host"] == f"rebinding.example:{allowed.port}"
    assert forbidden.requests == []


def test_the_next_address_is_asked_when_one_does_not_answer(
    names: Names, two_receivers: tuple[Receiver, Receiver]
) -> None:
    _, answers = two_receivers
    names["two.example"] = ["127.0.0.3,127.0.0.2"]
    settings = Webhook(allow=["two.example:*"], allow_http=True, allow_networks=["127.0.0.0/8"])

    assert deliver(settings, answers.url(host="two.example"), None, None, "id") == 200


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
        ({"X-A": "s3cret\r\nX-B: c"}, "'X-A': expected a text"),
        ({"X-A": "s3cret\n"}, "'X-A': expected a text"),
        ({"X-A": " s3cret"}, "'X-A': expected a text"),
        ({"X-A": "s3cret\x00"}, "'X-A': expected a text"),
        ({"X-A": "s3crét"}, "'X-A': expected a text"),
        ({"X-A": 7}, "'X-A': expected a text"),
        ({"X-A": b"s3cret"}, "'X-A': expected a text"),
        ({"X-A:": "b"}, "no name of a header"),
        ({"X A": "b"}, "no name of a header"),
        ({"X-A\r\nX-B": "b"}, "no name of a header"),
        ({"": "b"}, "no name of a header"),
        ({7: "b"}, "no name of a header"),
        *(
            ({name: "b"}, "it is set here")
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


def test_other_headers_are_sent() -> None:
    assert check_headers({"X-Shop": "a b", "Accept": ""}) == {"X-Shop": "a b", "Accept": ""}
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


def signed(body: bytes = b"{}", secret: str = SECRET, **changed: str | None) -> dict[str, str]:
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
        (lambda: signed(), b"[]", "does not fit"),
        (lambda: signed(secret="another"), b"{}", "does not fit"),
        (lambda: signed(id="8"), b"{}", "does not fit"),
        (lambda: signed(timestamp="1"), b"{}", "does not fit"),
        (lambda: signed(signature="v1,"), b"{}", "does not fit"),
        (lambda: signed(signature="v1,ü"), b"{}", "does not fit"),
        (lambda: signed(signature="\ud800"), b"{}", "does not fit"),
        (lambda: signed(signature=" "), b"{}", "does not fit"),
        (lambda: signed(signature=None), b"{}", "no Webhook-Signature"),
        (lambda: signed(id=None), b"{}", "no Webhook-Id"),
        (lambda: signed(timestamp=None), b"{}", "no Webhook-Timestamp"),
        (dict, b"{}", "not signed"),
        (lambda: {**signed(), "webhook-id": b"7"}, b"{}", "is no text"),
        (lambda: signed(timestamp="1e9"), b"{}", "no number of seconds"),
        (lambda: signed(timestamp="-1"), b"{}", "no number of seconds"),
        (lambda: signed(timestamp="٣"), b"{}", "no number of seconds"),
        (lambda: signed(), "{}", "of type str"),
        (lambda: at(310), b"{}", r"signed 3\d\d s ago"),
        (lambda: at(-310), b"{}", r"signed 3\d\d s from now"),
    ],
)
def test_what_is_not_signed_as_it_should_be_is_refused(
    headers: Callable[[], Any], body: Any, message: str
) -> None:
    with pytest.raises(InvalidSignature, match=message) as caught:
        verify(SECRET, headers(), body)

    assert SECRET not in str(caught.value)


def test_the_tolerance_is_the_receivers_choice() -> None:
    assert verify(SECRET, at(310), b"{}", tolerance=400) == "7"


# -- answers ----------------------------------------------------------------------------------

TARGET = parse("https://hooks.example.com/orders?token=s3cret")


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_success_is_done(status: int) -> None:
    assert judge(Answer(status), TARGET, 60) == status


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599])
def test_what_may_pass_is_tried_again(status: int) -> None:
    with pytest.raises(DeliveryFailed, match=f"{status}: so sorry") as caught:
        judge(Answer(status, text="so sorry"), TARGET, 60)

    assert (caught.value.status, caught.value.retry_after) == (status, None)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("status", [101, 400, 401, 403, 404, 409, 410, 413, 422, 451, 600, 999])
def test_what_will_not_pass_is_refused(status: int) -> None:
    with pytest.raises(DeliveryRefused, match=str(status)) as caught:
        judge(Answer(status, retry_after="5"), TARGET, 60)

    assert caught.value.status == status
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_a_redirect_is_refused(status: int) -> None:
    answer = Answer(status, location="http://user:s3cret@169.254.169.254/meta?s3cret")

    with pytest.raises(DeliveryRefused, match=r"to 'http://…@169\.254\.169\.254/meta'"):
        judge(answer, TARGET, 60)


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
        ("0", None),
        ("-5", None),
        ("5.5", None),
        ("5, 6", None),
        ("9" * 5000, None),
        ("٣", None),
        ("soon", None),
        ("Wed, 99 Foo 2030 99:99:99 GMT", None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_time_and_else_left_alone(
    value: str | Callable[[], str] | None, expected: Any
) -> None:
    assert retry_after(value() if callable(value) else value, 60) == expected


def test_a_receiver_that_may_ask_for_no_wait_is_not_heeded() -> None:
    assert retry_after("5", 0) is None


def test_a_failure_tells_after_which_time_the_receiver_is_to_be_asked_again() -> None:
    with pytest.raises(DeliveryFailed) as caught:
        judge(Answer(503, retry_after="7"), TARGET, 60)

    assert caught.value.retry_after == 7


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


# -- the task at the call ---------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    DelayQ(app, webhook=Webhook(allow=["hooks.example.com"], secret="s3cret"))
    yield app
    app.close()


def sent(app: Celery) -> list[Any]:
    """Return the messages that were sent, and take them away."""
    found = []
    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
        while queue.qsize():
            found.append(queue.get(block=False))
            found[-1].ack()
    return found


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("https://user:pw@hooks.example.com/",), {}, "user or password"),
        (("ftp://hooks.example.com/",), {}, "begins with https://"),
        (("http://hooks.example.com/",), {}, "expected https"),
        (("https://evil.example.net/",), {}, "is not allowed"),
        ((), {"url": "https://evil.example.net/"}, "is not allowed"),
        (("https://hooks.example.com/", float("nan")), {}, "as JSON"),
        (("https://hooks.example.com/",), {"headers": {"Host": "evil"}}, "it is set here"),
    ],
)
def test_what_must_not_be_sent_is_refused_at_the_call(
    app: Celery, args: Any, kwargs: Any, message: str
) -> None:
    with pytest.raises(InvalidWebhook, match=message):
        app.tasks[NAME].apply_async(args, kwargs, countdown=60)

    assert sent(app) == []


def test_without_settings_the_allow_list_is_left_to_the_worker(app: Celery) -> None:
    app._delayq.webhook = None

    app.tasks[NAME].delay("https://hooks.example.net/")
    with pytest.raises(InvalidWebhook, match="user or password"):
        app.tasks[NAME].delay("https://user:pw@hooks.example.net/")

    assert len(sent(app)) == 1


def test_missing_arguments_are_refused_as_by_any_task(app: Celery) -> None:
    with pytest.raises(TypeError, match="url"):
        app.tasks[NAME].delay()


def test_what_celery_sends_itself_is_checked_when_it_runs(app: Celery) -> None:
    """A link whose first argument is a result: whoever has sent it is gone."""
    app.tasks[NAME].s("https://hooks.example.com/").apply_async((7,), parent_id="parent")

    assert len(sent(app)) == 1


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("https://hooks.example.com/a?token=s3cret", {"id": 7}), {"headers": {"X-A": "s3cret"}}),
        ((), {"url": "https://hooks.example.com/a?token=s3cret", "payload": {"id": 7}}),
    ],
)
def test_descriptions_of_the_task_show_neither_query_nor_values_of_headers(
    app: Celery, args: Any, kwargs: Any
) -> None:
    app.tasks[NAME].apply_async(args, kwargs)

    [message] = sent(app)
    shown = message.headers["argsrepr"] + message.headers["kwargsrepr"]
    assert "s3cret" not in shown
    assert "https://hooks.example.com/a?…" in shown
    assert "'id': 7" in shown
    assert message.payload[0] == list(args)
    assert message.payload[1] == kwargs


def test_without_settings_the_task_fails_and_says_what_to_do(app: Celery) -> None:
    app._delayq.webhook = None

    result = app.tasks[NAME].apply(("https://hooks.example.com/",))

    assert isinstance(result.result, ConfigError)
    assert "DelayQ(app, webhook=Webhook(" in str(result.result)


def test_settings_of_another_type_are_refused_and_not_shown(app: Celery) -> None:
    app._delayq.webhook = {"secret": "s3cret"}

    with pytest.raises(ConfigError, match="of type dict") as caught:
        app.tasks[NAME].delay("https://hooks.example.com/")

    assert "s3cret" not in str(caught.value)


WITHOUT_HTTPX = """
import sys
sys.modules["httpx"] = None
from celery_delayq.webhook import Webhook, deliver, post
from celery_delayq.errors import ConfigError
try:
    deliver(Webhook(allow=["hooks.example.com"]), "https://hooks.example.com/", 1, None, "id")
except ConfigError as exc:
    print(exc)
"""


def test_without_httpx_the_module_is_imported_and_the_task_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HTTPX], capture_output=True, text=True, check=True
    )

    assert 'needs httpx: pip install "celery-delayq[webhook]"' in done.stdout


# -- what is logged ---------------------------------------------------------------------------


def test_the_query_and_the_secret_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = Webhook(
        allow=["127.0.0.1:*"], secret="s3cret", allow_http=True, allow_networks=["127.0.0.1"]
    )

    with Receiver(200) as receiver:
        deliver(settings, receiver.url("/orders?token=t0ken"), None, {"X-A": "v4lue"}, "id")

    assert receiver.requests[0].path == "/orders?token=t0ken"
    assert "/orders" in caplog.text
    assert not any(secret in caplog.text for secret in ("s3cret", "t0ken", "v4lue"))
