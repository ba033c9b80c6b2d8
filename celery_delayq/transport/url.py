"""From a connection with a ``delayq+…`` URL to the plain one that kombu itself would make.

kombu splits ``delayq+redis://host:1/2`` at the ``+`` and leaves the rest whole in
``hostname``; its Redis channel then connects to localhost, silently. A clone keeps that form,
a failover (``Connection.switch``) parses the URL but takes the whole scheme for the name of
the transport. :func:`plain_connection` makes one thing of all of these.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from kombu import Connection

from celery_delayq.errors import ConfigError

#: What stands before the ``+``, and the alias under which kombu knows the transport.
PREFIX = "delayq"

#: The stock scheme behind each of ours.
SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")

#: Query options of a URL over TCP, beside those that begin with ``ssl_``.
_QUERY_OPTIONS = ("credential_provider",)


def aliases() -> list[str]:
    """Return the transport names to register with kombu."""
    return [PREFIX, *(f"{PREFIX}+{scheme}" for scheme in SCHEMES)]


def plain_url(url: str) -> str:
    """Return *url* with its stock scheme.

    Raises
    ------
    ConfigError
        The scheme or a query option is not one of ours.
    """
    plain = url.removeprefix(f"{PREFIX}+")
    scheme = plain.partition("://")[0]
    if scheme not in SCHEMES:
        valid = ", ".join(f"{PREFIX}+{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"broker URL scheme {scheme!r} is not known; valid are {valid}")
    if scheme != "redis+socket":
        unknown = [
            name for name, _ in parse_qsl(urlsplit(plain).query)
            if name not in _QUERY_OPTIONS and not name.startswith("ssl_")
        ]
        if unknown:
            raise ConfigError(
                f"broker URL option(s) {', '.join(unknown)} are not known; valid are ssl_…, "
                f"{', '.join(_QUERY_OPTIONS)}; other options go into broker_transport_options"
            )
    return plain


def own_url(url: str) -> str:
    """Return *url* with our scheme, so that a failover to it does not end at stock kombu."""
    return f"{PREFIX}+{plain_url(url)}"


def plain_connection(connection: Connection) -> Connection:
    """Return a connection with stock scheme to where *connection* leads, not opened.

    Raises
    ------
    ConfigError
        The URL is not one of ours.
    """
    hostname = connection.hostname or ""
    options = {
        "userid": connection.userid,
        "password": connection.password,
        "virtual_host": connection.virtual_host,
        "port": connection.port,
        "ssl": connection.ssl,
        "transport_options": connection.transport_options,
    }
    if getattr(connection, "credential_provider", None) is not None:  # kombu 5.6 and newer
        options["credential_provider"] = connection.credential_provider
    others = [plain_url(url) for url in connection.alt or []]
    if "://" in hostname:
        this = plain_url(hostname)
        # All sentinels are asked for the master, not only the one that is this URL's.
        urls = [this, *(url for url in others if url != this and this.startswith("sentinel:"))]
        return Connection(";".join(urls), **options)
    scheme = str(connection.transport_cls).removeprefix(f"{PREFIX}+")
    return Connection(
        hostname=hostname or None,
        transport=scheme if scheme in SCHEMES else "redis",
        alternates=others,
        **options,
    )
