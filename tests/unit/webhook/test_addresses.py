"""Where webhooks may go: URLs, the allow list and addresses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from celery_delayq.embedded.ports import free_port
from celery_delayq.errors import DeliveryFailed, InvalidWebhook
from celery_delayq.webhook import Webhook, check_url, deliver
from celery_delayq.webhook.addresses import is_allowed, network, parse, resolve
from tests.support import TIMEOUT
from tests.support.receiver import Receiver

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
        ("xn--strae-oqa.example.com", "https://xn--strae-oqa.example.com/"),
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


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "of type NoneType: expected a text"),
        (b"https://hooks.example.com/", "of type bytes"),
        ("https://hooks.example.com/" + "x" * 8000, "8,000 are allowed"),
        *(
            (url, "printable ASCII")
            for url in (
                *("", " https://hooks.example.com/", "ht\ntps://hooks.example.com/"),
                *("https://hooks.example.com\\@evil.net/", "https://hooks.example.com/a b"),
                *("https://hooks.example.com/\r\nHost: evil", "https://hooks.example.com/é"),
                "https://hooks。example.com/",
            )
        ),
        *(
            (url, "begins with https://")
            for url in (
                *("hooks.example.com/orders", "//hooks.example.com/orders", "file:///etc/passwd"),
                *("https:hooks.example.com", "ftp://hooks.example.com/"),
                *("gopher://hooks.example.com/", "javascript://hooks.example.com/"),
            )
        ),
        *(
            (f"https://{user}@hooks.example.com/", "user or password")
            for user in ("user:s3cret", "s3cret", "")
        ),
        ("https://user:s3#cret@hooks.example.com/", "never sent"),
        ("https://hooks.example.com/#s3cret", "never sent"),
        *((f"https://hooks.example.com:{port}/", "1 to 65535") for port in ("0", "65536", "*")),
        *(
            (f"https://{rest}", "expected the name of a host")
            for rest in (
                *("/orders", "user:s3/cret@hooks.example.com/", "user:s3?cret@hooks.example.com/"),
                *("hooks.example.com:/", "hooks.example.com:44a/?s3cret", "hooks..example.com/"),
                *("-hooks.example.com/", "hooks%2eexample.com/", "*.example.com/", "2130706433/"),
                *(f"{'a' * 64}.example.com/", "0x7f000001/", "0177.0.0.1/", "127.1/"),
                *("xn--a/", "xn--0.example.com/", "a.xn--aaa.example.com/", "xn--_.example.com/"),
            )
        ),
        *(
            (f"https://{host}/", "cannot be read|expected the name")
            for host in ("[::1", "[fe80::1%25eth0]", "[::1]evil.example.com", "[hooks.example.com]")
        ),
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


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
            "Temporary fail",
        ),
        (None, "took too long"),
    ],
)
def test_a_host_that_is_not_found_in_time_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, answer: OSError | None, message: str
) -> None:
    over = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        if answer is not None:
            raise answer
        over.wait(TIMEOUT)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    with pytest.raises(DeliveryFailed, match=message):
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
    host = "rebinding.example"
    settings = Webhook(allow=[f"{host}:*"], allow_http=True, allow_networks=["127.0.0.1/32"])

    deliver(settings, allowed.url(host=host), None, None, "id")
    with pytest.raises(InvalidWebhook, match=r"leads to 127\.0\.0\.2"):
        deliver(settings, allowed.url(host=host), None, None, "id")

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
