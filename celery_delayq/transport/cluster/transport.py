"""The transport for a Redis Cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu import Connection

from celery_delayq.dispatch.promotion_loop import PromotionLoop
from celery_delayq.integration.broker_urls import CLUSTER_SCHEMES
from celery_delayq.store import server_checks
from celery_delayq.store.cluster.nodes import Nodes
from celery_delayq.store.cluster.slots import Address
from celery_delayq.store.cluster.stores import check_number
from celery_delayq.store.scripting.errors import translate_errors
from celery_delayq.transport import url
from celery_delayq.transport.cluster.channel import ClusterChannel
from celery_delayq.transport.cluster.poller import ClusterPoller
from celery_delayq.transport.redis import Transport

#: What connections of kombu are made with that is not for asking where a slot is.
_KOMBU_OPTIONS = ("connection_class", "host", "port", "db", "max_connections")


class ClusterTransport(Transport):
    """kombu's Redis transport, on a Redis Cluster, with a schedule."""

    Channel = ClusterChannel
    Poller = ClusterPoller

    # Without these kombu gives up where an error comes again after it has connected anew: here a
    # new connection says nothing of the shard that is away.
    recoverable_connection_errors = Transport.connection_errors
    recoverable_channel_errors = ()

    _nodes: Nodes | None = None

    def __init__(self, client: Connection, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._promotion_loop = PromotionLoop.unless_patched()

    @property
    def place(self) -> str:
        """Which Redis Cluster this is, whatever the credentials."""
        return f"cluster {sorted(url.node_addresses(self.plain))}"

    @property
    def nodes(self) -> Nodes:
        """The masters of all slots; known when there is a channel."""
        assert self._nodes is not None
        return self._nodes

    def nodes_by(self, params: dict[str, Any]) -> Nodes:
        """Return :attr:`nodes`, made with parameters of a connection of kombu."""
        if self._nodes is None:
            options = {name: params[name] for name in params if name not in _KOMBU_OPTIONS}
            seeds = [Address(*each) for each in url.node_addresses(self.plain)]
            self._nodes = Nodes(seeds, tls=bool(self.plain.ssl), **options)
        return self._nodes

    def as_uri(self, _uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URLs of all nodes, as :func:`~celery_delayq.transport.url.shown_url` does."""
        first = urlsplit(super().as_uri(_uri, include_password, mask))
        user, at, _ = first.netloc.rpartition("@")
        if not (self.plain.userid or self.plain.password):
            user = at = ""
        scheme = CLUSTER_SCHEMES[1] if self.plain.ssl else CLUSTER_SCHEMES[0]
        nodes = url.node_addresses(self.plain)
        urls = ";".join(f"{scheme}://{user}{at}{h}:{p}{first.path}" for h, p in nodes)
        return url.shown_url(urls, include_password)

    def establish_connection(self) -> Any:
        """Connect, and refuse servers that lack what the scripts need."""
        with translate_errors():
            connection = super().establish_connection()
        check_number(self.nodes, self._avail_channels[0].slot.keys, self.settings.cluster_tags)
        return connection

    def check_server(self, _client: Any) -> None:
        """Refuse a server that lacks what the scripts need; `Nodes` refuses a single Redis.

        Any master does, as one of them may be away.
        """
        with translate_errors(), self.nodes.briefly(None) as client:
            server_checks.check_server(client, in_cluster=True)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have the event loop poll for us."""
        super().register_with_event_loop(connection, loop)
        vars(self.cycle).pop("_on_connection_disconnect", None)  # kombu's: see ours

    def _keep_alternates(self, client: Connection) -> None:
        """Have kombu not change to the URL of another node: each connection asks all nodes."""
        client.cycle = None
