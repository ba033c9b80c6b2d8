"""The transport for RabbitMQ, over TCP or TLS."""

from __future__ import annotations

from typing import Any

from kombu import Connection as KombuConnection
from kombu.transport import pyamqp

from celery_delayq.errors import NotSupported
from celery_delayq.settings import Settings
from celery_delayq.transport import url
from celery_delayq.transport.amqp.channel import Channel
from celery_delayq.transport.amqp.side import Side
from celery_delayq.transport.amqp.topology import Declarer, Topology
from celery_delayq.transport.amqp.waiting import WaitingConnection

#: Settings that need a Redis.
_ON_REDIS = (
    *("max_scheduled", "max_ready", "promote_rate", "queues", "wait_replicas"),
    *("history", "dead_letters_archive"),
)

#: By URL.
_SIDES: dict[str, Side] = {}


class Connection(WaitingConnection):
    """A connection to RabbitMQ."""

    Channel = Channel

    #: The transport that it belongs to.
    delayq: Transport
    #: What is declared on it already; another connection may reach another broker.
    declarer: Declarer | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.declared_streams: set[str] = set()


class Transport(pyamqp.Transport):
    """kombu's RabbitMQ transport with delays."""

    Connection = Connection
    Channel = Channel

    #: Leave the URL to us, and ask :meth:`as_uri` for the form to show.
    can_parse_url = True

    def __init__(self, client: KombuConnection, **kwargs: Any) -> None:
        self.plain = url.plain_connection(client)
        self.settings = Settings.from_options(client.transport_options)
        wrong = [name for name in _ON_REDIS if getattr(self.settings, name)]
        if wrong:
            raise NotSupported(
                f"delayq setting(s) {', '.join(wrong)}: an amqp broker cannot do this; a broker "
                "delayq+redis:// can"
            )
        self.topology = Topology("delayq", 25, "quorum", 0)
        #: Queues declared on this connection that do not last.
        self.fleeting_queues: set[str] = set()
        super().__init__(client, **kwargs)

    @property
    def side(self) -> Side:
        """The connection for dead letters, one for each broker in a process."""
        uri = self.plain.as_uri(include_password=True)
        return _SIDES.setdefault(uri, Side(self.client))

    def as_uri(self, _uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the stock form of the URL: Flower and others parse it."""
        shown: str = self.plain.as_uri(include_password, mask)
        return shown

    def establish_connection(self) -> Any:
        """Connect by the plain URL."""
        ours: KombuConnection = self.__dict__["client"]
        self.client = self.plain
        try:
            connection = super().establish_connection()
        finally:
            self.client = ours
        connection.client = ours
        connection.delayq = self
        return connection
