"""Converts a connection with a ``delayq+…`` URL into the connection for kombu's own transport.

kombu splits ``delayq+redis://host:1/2`` at the ``+`` and stores the rest, ``redis://host:1/2``, in
``hostname``. Its Redis channel would then connect to localhost, without an error. A clone of the
connection keeps that form. A failover (``Connection.switch``) parses the URL, but uses the whole
scheme as the transport's name. :func:`plain_connection` converts all these forms.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from kombu import Connection

from celery_delayq.errors import ConfigError
from celery_delayq.integration.broker_urls import CLUSTER_SCHEMES, RABBITMQ_SCHEMES, SCHEMES
from celery_delayq.integration.flower import change_flower
from celery_delayq.settings import Settings, misplaced_option_warnings
from celery_delayq.utils.credentials import hide
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: The part of a scheme before the ``+``. Also kombu's alias of the transport.
SCHEME_PREFIX = "delayq"

#: Query options of a URL for a Unix socket, and of a URL for TCP.
_SOCKET_OPTIONS = ("virtual_host", "credential_provider")
_TCP_OPTIONS = (
    "credential_provider",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_keyfile",
    "ssl_password",
)

#: The options for TCP that py-amqp does not have.
_REDIS_OPTIONS = (
    "credential_provider",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_check_hostname",
    "ssl_password",
)

#: Values of ``ssl_cert_reqs``, as in ``kombu.utils.url.parse_ssl_cert_reqs``.
_CERT_REQS_VALUES = ("required", "optional", "none", "CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE")

_ENCODING_ADVICE = "in a user name or password the characters / ? # ; are written %2F %3F %23 %3B"

_DEFAULT_PORTS = {
    "redis": 6379,
    "rediss": 6379,
    "sentinel": 26379,
    **dict.fromkeys(CLUSTER_SCHEMES, 6379),
    "amqp": 5672,
    "amqps": 5671,
}


class UrlTransport:
    """The part of a transport that reads the URL and the options; in front of kombu's transport.

    Attributes
    ----------
    plain : Connection
        The connection with kombu's own scheme.
    settings : Settings
        The ``delayq`` settings.
    temporary_queues : set[str]
        Temporary queues declared on this connection.
    batches : int
        Number of open batches of producers on this connection.
    """

    #: kombu leaves the URL to this class, and calls :meth:`as_uri` to show the URL.
    can_parse_url = True

    client: Connection

    def _read_options(
        self, client: Connection, unsupported: Collection[str], known: Collection[str]
    ) -> None:
        """Read URL and options. Warn of options in a wrong place.

        Parameters
        ----------
        unsupported : Collection[str]
            The settings that only other brokers have.
        known : Collection[str]
            The transport options of kombu.
        """
        self.plain = plain_connection(client)
        self.settings = Settings.from_options(client.transport_options, unsupported)
        for text in misplaced_option_warnings(client.transport_options, known):
            warn_once(logger, text)
        self.temporary_queues: set[str] = set()
        self.batches = 0

    @contextmanager
    def plain_client(self) -> Iterator[Connection]:
        """Give kombu the plain connection while kombu reads the address from it; yield our own.

        Safe to swap, since only one thread uses a connection.
        """
        ours: Connection = self.__dict__["client"]
        self.client = self.plain
        try:
            yield ours
        finally:
            self.client = ours

    def as_uri(self, _uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL as :func:`shown_url` gives it."""
        change_flower()
        shown: str = self.plain.as_uri(include_password, mask)
        # kombu has created a transport for this call. That for Redis has opened an epoll.
        self.plain.release()
        return shown_url(shown, include_password)


def plain_url(url: str) -> str:
    """Return *url* with kombu's own scheme.

    Raises
    ------
    ConfigError
        The scheme, the port, the database or a query option is not valid. The message shows no
        text that may be part of a password.
    """
    plain = url.removeprefix(f"{SCHEME_PREFIX}+")
    _parse_and_check(plain)
    return plain


def delayq_urls(urls: Sequence[str]) -> list[str]:
    """Return *urls* in the form that ``Connection.switch`` reads correctly.

    Each URL has the scheme ``delayq+…``, so that a failover stays with this transport. Each URL has
    a port and a database: without them, kombu would keep those of the former URL. All Sentinels
    name the same master, so parts that a further URL lacks come from the first URL.
    """
    parts = [_parse_and_check(url.removeprefix(f"{SCHEME_PREFIX}+")) for url in urls]
    return [_delayq_url(each, parts[0]) for each in parts]


def plain_connection(connection: Connection) -> Connection:
    """Return an unopened connection to the same server, with kombu's own scheme.

    Raises
    ------
    ConfigError
        The URL is not valid for this transport.
    """
    hostname = connection.hostname or ""
    alternates = [plain_url(url) for url in connection.alt or []]
    options = {
        "userid": connection.userid,
        "password": connection.password,
        "virtual_host": connection.virtual_host,
        "port": connection.port,
        "ssl": connection.ssl,
        "transport_options": connection.transport_options,
        "connect_timeout": connection.connect_timeout,
        "heartbeat": connection.heartbeat,
        "login_method": connection.login_method,
    }
    if getattr(connection, "credential_provider", None) is not None:  # kombu 5.6 and newer
        options["credential_provider"] = connection.credential_provider
    if "://" in hostname:
        this = plain_url(hostname)
        if this.startswith(CLUSTER_SCHEMES):
            return Connection(";".join(_node_urls([this, *alternates])), **options)
        # kombu asks all Sentinels for the master, not only the Sentinel of the current URL.
        others = [url for url in alternates if url != this and this.startswith("sentinel:")]
        return Connection(";".join([this, *others]), **options)
    scheme = str(connection.transport_cls).removeprefix(f"{SCHEME_PREFIX}+")
    if scheme == "redis+socket":
        return Connection(_socket_url(connection), transport_options=connection.transport_options)
    return Connection(
        hostname=hostname or None,
        transport=scheme if scheme in SCHEMES else "redis",
        alternates=alternates,
        **options,
    )


def _node_urls(urls: Sequence[str]) -> list[str]:
    """Return the URLs of a Redis Cluster's nodes, with the scheme of a single Redis.

    All nodes belong to one cluster, so parts that a further URL lacks come from the first URL.
    """
    first = _parse_and_check(urls[0])
    found = []
    for url in dict.fromkeys(urls):
        parts = _parse_and_check(url)
        if parts.scheme != first.scheme:
            raise ConfigError(
                f"broker URLs {first.scheme}://… and {parts.scheme}://… of one broker: expected "
                f"{SCHEME_PREFIX}+{first.scheme}:// for each node of the Redis Cluster"
            )
        own = urlsplit(_delayq_url(parts, first).removeprefix(f"{SCHEME_PREFIX}+"))
        found.append(own._replace(scheme=parts.scheme.replace("rediscluster", "redis")).geturl())
    return found


def shown_url(plain: str, include_password: bool) -> str:
    """Return one URL, or several joined by ``;``, for ``Connection.as_uri``.

    Without the password, people read the URL: its scheme is ``delayq+…``. With the password,
    programs such as Flower parse the URL: its scheme is kombu's own.
    """
    if include_password:
        return plain
    return ";".join(f"{SCHEME_PREFIX}+{each}" for each in plain.split(";"))


def node_addresses(plain: Connection) -> list[tuple[str, int]]:
    """Return host and port of each node that the URLs of a Redis Cluster name."""
    others = (urlsplit(url) for url in plain.alt or [])
    addresses = [(plain.hostname, plain.port), *((each.hostname, each.port) for each in others)]
    return [*dict.fromkeys((str(host), int(port)) for host, port in addresses)]


def _parse_and_check(plain: str) -> SplitResult:
    scheme, separator, _ = plain.partition("://")
    if not separator:
        raise ConfigError(
            "a broker URL, or a part of it after ';', has no scheme; valid are "
            f"{_valid_schemes()}; {_ENCODING_ADVICE}"
        )
    if scheme not in SCHEMES:
        raise ConfigError(
            f"broker URL scheme {hide(scheme)} is not known; valid are {_valid_schemes()}"
        )
    try:
        parts = urlsplit(plain)
        parts.port  # noqa: B018  urllib looks at it only now
    except ValueError:
        # urllib's message may show part of a password.
        raise ConfigError(
            f"a broker URL {scheme}://… cannot be read, or its port is no number from 0 to "
            f"65535; {_ENCODING_ADVICE}"
        ) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.fragment or any("@" in name for name in options):
        raise ConfigError(f"a broker URL {scheme}://… cannot be read; {_ENCODING_ADVICE}")
    is_socket = scheme == "redis+socket"
    valid: tuple[str, ...] = _SOCKET_OPTIONS if is_socket else _TCP_OPTIONS
    if scheme in RABBITMQ_SCHEMES:
        valid = tuple(name for name in valid if name not in _REDIS_OPTIONS)
    if unknown := [name for name in options if name not in valid]:
        raise ConfigError(
            f"broker URL option(s) {', '.join(unknown)} are not known; valid are "
            f"{', '.join(valid)}; other options go into broker_transport_options"
        )
    if options.get("ssl_cert_reqs", "none") not in _CERT_REQS_VALUES:
        raise ConfigError(
            f"broker URL option ssl_cert_reqs={options['ssl_cert_reqs']!r} is not known; "
            f"valid are {', '.join(_CERT_REQS_VALUES[:3])}"
        )
    if scheme in RABBITMQ_SCHEMES:
        return parts
    database = options.get("virtual_host", "0") if is_socket else parts.path.strip("/") or "0"
    if not database.isdecimal():
        shown = "" if "@" in plain.partition("://")[2].partition("/")[2] else f" {database!r}"
        raise ConfigError(
            f"the database{shown} of a broker URL {scheme}://… is no number, such as 0; "
            f"{_ENCODING_ADVICE}"
        )
    if scheme in CLUSTER_SCHEMES and int(database):
        raise ConfigError(
            f"database {int(database)} in a broker URL {scheme}://…: a Redis Cluster has database "
            "0 alone; use global_keyprefix to keep apps apart"
        )
    return parts


def _valid_schemes() -> str:
    return ", ".join(f"{SCHEME_PREFIX}+{scheme}://" for scheme in SCHEMES)


def _delayq_url(parts: SplitResult, first: SplitResult) -> str:
    if parts.scheme == "redis+socket":
        # kombu's parser refuses ?virtual_host=, since the path is a virtual host already.
        query = quote(f"?{parts.query}", safe="=&") if parts.query else ""
        userinfo = parts.netloc.rpartition("@")[0]
        # kombu warns about a URL without a host. The host is not used.
        netloc = f"{userinfo}@localhost" if userinfo else "localhost"
        return f"{SCHEME_PREFIX}+{parts._replace(netloc=netloc, query='').geturl()}{query}"
    netloc, path, query = parts.netloc, parts.path, parts.query
    share_one_broker = parts.scheme == "sentinel" or parts.scheme in CLUSTER_SCHEMES
    if share_one_broker and first.scheme == parts.scheme:
        if "@" not in netloc and "@" in first.netloc:
            netloc = f"{first.netloc.rpartition('@')[0]}@{netloc}"
        path = path if path.strip("/") else first.path
        query = query or first.query
    if parts.port is None:
        netloc = f"{netloc.removesuffix(':')}:{_DEFAULT_PORTS[parts.scheme]}"
    if parts.scheme not in RABBITMQ_SCHEMES:
        path = f"/{path.strip('/') or 0}"
    own = parts._replace(netloc=netloc, path=path, query=query)
    return f"{SCHEME_PREFIX}+{own.geturl()}"


def _socket_url(connection: Connection) -> str:
    """Undo :func:`_delayq_url` after ``Connection.switch`` has split the URL of a Unix socket."""
    path, mark, query = connection.virtual_host.partition("?")
    userinfo = ""
    if connection.userid or connection.password:
        password = f":{quote(connection.password, safe='')}" if connection.password else ""
        userinfo = f"{quote(connection.userid or '', safe='')}{password}@"
    return f"redis+socket://{userinfo}/{quote(path)}{mark}{query}"
