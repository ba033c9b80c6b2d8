"""Allowed receivers of webhooks: URLs, host names and addresses. Policy, and one DNS look-up.

:func:`parse` parses a URL once, and :func:`resolve` looks up its host once. So the request goes to
the address that was checked.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple
from unicodedata import category
from urllib.parse import urlsplit

from celery_delayq.errors import ConfigError, DeliveryFailed, InvalidWebhook
from celery_delayq.utils.credentials import hide

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: Default ports by scheme.
DEFAULT_PORTS = {"https": 443, "http": 80}

#: IPv4 networks without public hosts: the registries of RFC 6890 and multicast.
_NON_PUBLIC_IPV4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        # A public address that Azure uses for a service of its virtual machines.
        "168.63.129.16/32",
    )
)

#: All public IPv6 addresses are in this network …
_PUBLIC_IPV6 = IPv6Network("2000::/3")
#: … except Teredo and other protocols, examples, and 6to4, which contains an IPv4 address.
_NON_PUBLIC_IPV6 = tuple(
    IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)

#: IPv4 addresses as NAT64 translates them, on hosts with IPv6 only (RFC 6052).
_NAT64 = IPv6Network("64:ff9b::/96")

#: Longer URLs are refused: few servers read them.
MAX_URL_CHARACTERS = 8000

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
#: Some resolvers read names with such a last label as IPv4 addresses: 2130706433, 0x7f.1.
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PRINTABLE_TEXT = re.compile(r"[!-~]+")
_HOST_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}|\*))?")


class WebhookUrl(NamedTuple):
    """A URL in parts.

    *host* is in lower case, IPv6 without brackets; *request* is path and query as they are sent.
    """

    scheme: str
    host: str
    port: int
    path: str
    request: str

    @property
    def shown(self) -> str:
        """The URL without its query, which may hold secrets."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """Host and port as the URL and the header ``Host`` have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class Host(NamedTuple):
    """An entry of the allow list; *port* None is the scheme's port, 0 is any port."""

    name: str
    wildcard: bool
    port: int | None

    @classmethod
    def of(cls, entry: Any) -> Host:
        """Read an entry such as ``hooks.example.com``, ``*.example.org:8443`` or ``[::1]:*``.

        Raises
        ------
        ConfigError
            *entry* is no host.
        """
        wrong = ConfigError(
            f"Webhook(allow=[{entry!r}]): expected the name of a host or an address, such as "
            "'hooks.example.com', '*.example.org', '10.0.0.5' or '[fd00::5]', followed by ':8443' "
            "for a port other than that of the scheme, or by ':*' for any port"
        )
        if not isinstance(entry, str):
            raise wrong
        if address_of(entry) is not None:
            return cls(str(address_of(entry)), False, None)
        wildcard = entry.startswith("*.")
        name, digits = _host_and_port(entry.removeprefix("*."))
        port = 0 if digits in (None, "*") else _port(digits)
        if name is None or (wildcard and address_of(name) is not None) or port is None:
            raise wrong
        return cls(name, wildcard, None if digits is None else port)

    def covers(self, target: WebhookUrl) -> bool:
        """Return whether this entry allows a URL."""
        port = DEFAULT_PORTS[target.scheme] if self.port is None else self.port
        if port not in (0, target.port):
            return False
        if self.wildcard:
            return address_of(target.host) is None and target.host.endswith(f".{self.name}")
        return target.host == self.name


def parse(url: Any) -> WebhookUrl:
    """Return the parts of a URL.

    Raises
    ------
    InvalidWebhook
        The scheme is not ``http`` or ``https``, or the URL has a user, password or fragment.
    """

    def wrong(why: str) -> InvalidWebhook:
        return InvalidWebhook(f"webhook URL {hide(url)}: {why}")

    if not isinstance(url, str):
        raise wrong("expected a text such as 'https://hooks.example.com/orders'")
    # urlsplit drops some characters, so a URL with them would be sent differently.
    if not _PRINTABLE_TEXT.fullmatch(url) or "\\" in url:
        raise wrong(
            "expected printable ASCII without spaces and backslashes; write %20 and the like for "
            "other characters, and the host in its ASCII form xn--…"
        )
    if len(url) > MAX_URL_CHARACTERS:
        raise wrong(f"it has {len(url):,} characters; {MAX_URL_CHARACTERS:,} are allowed")
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise wrong("the host cannot be read") from exc
    if parts.scheme not in DEFAULT_PORTS or not url[len(parts.scheme) :].startswith("://"):
        raise wrong("expected a URL that begins with https:// (or http://)")
    if "@" in parts.netloc:
        raise wrong(
            "it has a user or password; give credentials in headers=, or let the receiver check "
            "the signature"
        )
    if "#" in url:
        raise wrong("the text after # is never sent; remove it")
    host, digits = _host_and_port(parts.netloc)
    if host is None:
        raise wrong("expected the name of a host or an address, such as hooks.example.com:8443")
    port = DEFAULT_PORTS[parts.scheme] if digits is None else _port(digits)
    if port is None:
        raise wrong("expected a port from 1 to 65535")
    path = parts.path or "/"
    request = f"{path}?{parts.query}" if parts.query else path
    return WebhookUrl(parts.scheme, host, port, path, request)


def network(text: Any) -> Network:
    """Return a network such as ``10.0.0.0/8``.

    Raises
    ------
    ConfigError
        *text* is no network.
    """
    try:
        if not isinstance(text, (str, IPv4Network, IPv6Network)):
            raise ValueError("no text")
        return ip_network(text)
    except ValueError as exc:
        raise ConfigError(
            f"Webhook(allow_networks=[{text!r}]): expected networks such as '10.0.0.0/8' or "
            f"'::1/128' ({exc})"
        ) from exc


def is_allowed(address: Address, networks: Iterable[Network] = ()) -> bool:
    """Return whether webhooks may go to an address: it is public, or in one of *networks*."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # the system connects to the IPv4 address
    if any(address in each for each in networks):
        return True
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_allowed(IPv4Address(address.packed[-4:]), networks)
        if address not in _PUBLIC_IPV6 or any(address in each for each in _NON_PUBLIC_IPV6):
            return False
    elif any(address in each for each in _NON_PUBLIC_IPV4):
        return False
    # Newer versions of Python know newer reserved networks.
    return address.is_global


def resolve(target: WebhookUrl, networks: Iterable[Network], deadline: float) -> list[str]:
    """Return the addresses of a host, all of which are allowed.

    Parameters
    ----------
    deadline : float
        End of the look-up, by ``time.monotonic``.

    Raises
    ------
    InvalidWebhook
        At least one address is not allowed.
    DeliveryFailed
        The name is unknown, or no name server answered in time.
    """
    literal = address_of(target.host)
    addresses = [literal] if literal is not None else _look_up(target, deadline)
    networks = tuple(networks)
    for address in addresses:
        if not is_allowed(address, networks):
            raise InvalidWebhook(
                f"webhook {target.shown} leads to {address}, which is no public address; if that "
                "is meant, add its network to Webhook(allow_networks=[…])"
            )
    return [str(address) for address in addresses]


def _look_up(target: WebhookUrl, deadline: float) -> list[Address]:
    """Look up a host by the system, in a thread, because ``getaddrinfo`` has no timeout."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as exc:
            found.append(exc)

    thread = threading.Thread(target=ask, name="delayq-webhook-resolver", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        raise DeliveryFailed(f"webhook {target.shown}: the look-up of its host took too long")
    [answer] = found
    if isinstance(answer, BaseException) or not answer:
        raise DeliveryFailed(f"webhook {target.shown}: its host is not found: {answer}")
    return list(dict.fromkeys(ip_address(each[4][0]) for each in answer))


def address_of(host: str) -> Address | None:
    """Return the address that a host is; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _host_and_port(text: str) -> tuple[str | None, str | None]:
    """Return a host in its normal form, None if it is invalid, and its port if one is given."""
    match = _HOST_PORT.fullmatch(text)
    return (None, None) if match is None else (_host(match["host"]), match["port"])


def _port(digits: str) -> int | None:
    """Return a port, or None if it is not from 1 to 65535."""
    port = int(digits) if digits.isdigit() else 0
    return port if 0 < port < 65_536 else None


def _host(text: str) -> str | None:
    """Return a host in its normal form, or None if it is invalid."""
    if text.startswith("["):
        address = address_of(text[1:-1]) if text.endswith("]") else None
        # A zone names an interface of this machine.
        return str(address) if isinstance(address, IPv6Address) and "%" not in text else None
    name = text.lower().removesuffix(".")
    if isinstance(address_of(name), IPv4Address):
        return name
    labels = name.split(".")
    if len(name) > 253 or not all(map(_is_label, labels)) or _NUMERIC_LABEL.fullmatch(labels[-1]):
        return None
    return name


def _is_label(text: str) -> bool:
    """Return whether a text is a label of a host's name; after ``xn--`` it must be Punycode."""
    if not _LABEL.fullmatch(text):
        return False
    try:
        decoded = text[4:].encode().decode("punycode") if text.startswith("xn--") else ""
    except UnicodeError:
        return False
    return "Cc" not in map(category, decoded)  # no control characters
