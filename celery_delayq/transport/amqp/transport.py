"""The transport for RabbitMQ, over TCP or TLS."""

from __future__ import annotations

import atexit
import os
import re
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from amqp import exceptions
from kombu import Connection as KombuConnection
from kombu.transport import pyamqp

from celery_delayq.errors import NotAllowed, UnsupportedServer
from celery_delayq.integration.install import change_loop
from celery_delayq.settings import ON_REDIS, Settings
from celery_delayq.transport import url
from celery_delayq.transport.amqp.channel import Channel
from celery_delayq.transport.amqp.dead_letter_connection import DeadLetterConnection
from celery_delayq.transport.amqp.declarer import Declarer
from celery_delayq.transport.amqp.inbound import tolerant_handler
from celery_delayq.transport.amqp.topology import Topology
from celery_delayq.transport.amqp.waiting import WaitingConnection

#: By URL and settings. A forked child opens its own connections.
_CONNECTIONS: dict[tuple[str, Settings], DeadLetterConnection] = {}
os.register_at_fork(after_in_child=_CONNECTIONS.clear)

#: Seconds that an ending process waits until RabbitMQ has stored its last dead letters.
SHUTDOWN_SECONDS = 5.0

#: The first version with at-least-once dead-lettering.
_MIN_RABBITMQ = (3, 10)


#: Replaces the event loop in kombu's reader, so that kombu does not continue to read: the
#: connection does so itself.
_NO_LOOP = SimpleNamespace(call_soon=lambda *_: None)


class Connection(WaitingConnection):
    """A connection to RabbitMQ."""

    Channel = Channel

    #: The transport of this connection.
    delayq: Transport
    #: Knows the queues and exchanges declared on this connection. Another connection may reach
    #: another broker.
    declarer: Declarer | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # py-amqp would replace the publish method of our channels, which wait for confirms already.
        kwargs.pop("confirm_publish", None)
        super().__init__(*args, frame_handler=tolerant_handler, **kwargs)

    def connect(self, *args: Any, **options: Any) -> Any:
        """Connect.

        Raises
        ------
        amqp.exceptions.RecoverableConnectionError
            This node cannot serve the virtual host now; another node may.
        """
        try:
            return super().connect(*args, **options)
        except exceptions.InternalError as exc:
            # For example, a virtual host is down on one node of a cluster. For py-amqp this error
            # is irrecoverable, so that kombu would not try the next URL.
            self.collect()
            raise exceptions.RecoverableConnectionError(exc.reply_text) from exc


class Transport(url.UrlTransport, pyamqp.Transport):
    """kombu's RabbitMQ transport with delays."""

    Connection = Connection
    Channel = Channel

    implements = pyamqp.Transport.implements.extend(batch_publish=True)

    def __init__(self, client: KombuConnection, **kwargs: Any) -> None:
        self._read_options(client, ON_REDIS, ())
        if isinstance(self.plain.ssl, dict):
            # The options of a URL have redis-py's names.
            named = {name.removeprefix("ssl_"): value for name, value in self.plain.ssl.items()}
            self.plain.ssl = named
        elif self.plain.transport_cls == "amqps" and not self.plain.ssl:
            # kombu's own transport for this scheme does the same.
            self.plain.ssl = True
        self.topology = Topology(self.settings)
        super().__init__(client, **kwargs)

    @property
    def dead_letter_connection(self) -> DeadLetterConnection:
        """The connection for dead letters, one for each broker in a process."""
        key = self.plain.as_uri(include_password=True), self.settings
        if key not in _CONNECTIONS:
            _CONNECTIONS.setdefault(key, DeadLetterConnection(self.client))
        return _CONNECTIONS[key]

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let a worker's event loop read from the connection."""
        change_loop(loop)
        connection.loop = loop
        super().register_with_event_loop(connection, loop)

    def on_readable(self, connection: Any, _loop: Any) -> None:
        """Read an event. If more data has been read, the connection continues itself."""
        super().on_readable(connection, _NO_LOOP)

    def establish_connection(self) -> Any:
        """Connect by the plain URL.

        Raises
        ------
        NotAllowed
            RabbitMQ refuses the account, or has no such virtual host.
        UnsupportedServer
            The broker is too old, or is not RabbitMQ.
        amqp.exceptions.RecoverableConnectionError
            This node cannot serve the virtual host now; another node may.
        """
        with self.plain_client() as ours:
            try:
                connection = super().establish_connection()
            except (exceptions.AccessRefused, exceptions.NotAllowed) as exc:
                raise NotAllowed(
                    f"{self.as_uri('')}: {exc.reply_text.rstrip('.')}; check user, password, "
                    "virtual host, and the user's rights to it"
                ) from exc
        check_version(connection.server_properties)
        connection.client = ours
        connection.delayq = self
        return connection


def check_version(server: Mapping[str, Any]) -> None:
    """Refuse brokers that cannot delay messages.

    Raises
    ------
    UnsupportedServer
        The server's properties do not name RabbitMQ 3.10 or newer.
    """
    product, version = str(server.get("product")), str(server.get("version"))
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if product != "RabbitMQ" or numbers < _MIN_RABBITMQ:
        raise UnsupportedServer(
            f"the broker is {product} {version}; delayq+amqp:// needs RabbitMQ 3.10 or newer"
        )


@atexit.register
def _end_connections() -> None:
    """Store the waiting dead letters before the process ends."""
    until = time.monotonic() + SHUTDOWN_SECONDS
    for connection in _CONNECTIONS.values():
        connection.end(until)
