"""The transport for a Redis Cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu import Connection

from celery_delayq.dispatch.promotion_loop import PromotionLoop
from celery_delayq.integration.broker_urls import CLUSTER_SCHEMES
from celery_delayq.store.cluster.nodes import Nodes
from celery_delayq.store.cluster.slots import Address
from celery_delayq.store.cluster.stores import check_number
from celery_delayq.store.scripting.errors import translate_errors
from celery_delayq.store.server import checks
from celery_delayq.transport import url
from celery_delayq.transport.cluster.channel import ClusterChannel
from celery_delayq.transport.cluster.poller import ClusterPoller
from celery_delayq.transport.redis import Transport

#: Options of kombu's connections that :class:`Nodes` does not take.
_KOMBU_OPTIONS = ("connection_class", "host", "port", "db", "max_connections")


class ClusterTransport(Transport):
    """kombu's Redis transport on a Redis Cluster, with a schedule."""

    Channel = ClusterChannel
    Poller = ClusterPoller

    # By default kombu stops if an error is raised again on a new connection. Here a new connection
    # may reach another shard than the one that is away, so kombu continues to try.
    recoverable_connection_errors = Transport.connection_errors
    recoverable_channel_errors = ()

    _nodes: Nodes | None = None

    def __init__(self, client: Connection, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._promotion_loop = PromotionLoop.unless_patched()

    @property
    def database_name(self) -> str:
        """The name of the Redis Cluster: equal for all credentials."""
        return f"cluster {sorted(url.node_addresses(self.plain))}"

    @property
    def nodes(self) -> Nodes:
        """The masters of all slots. Set as soon as there is a channel."""
        assert self._nodes is not None
        return self._nodes

    def nodes_by(self, params: dict[str, Any]) -> Nodes:
        """Return :attr:`nodes`. Create it with *params* of a kombu connection if it is not set."""
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
        """Connect, and refuse servers without the features that scripts need."""
        with translate_errors():
            connection = super().establish_connection()
        check_number(self.nodes, self._avail_channels[0].slot.keys, self.settings.cluster_tags)
        return connection

    def check_server(self, _client: Any) -> None:
        """Refuse a server without the features that scripts need.

        :class:`Nodes` refuses a single Redis. Any one master is checked, since another master may
        be away.
        """
        with translate_errors(), self.nodes.briefly(None) as client:
            checks.check_server(client, in_cluster=True)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let the event loop poll the connections."""
        super().register_with_event_loop(connection, loop)
        # kombu has set its own method, which would hide that of ClusterPoller.
        vars(self.cycle).pop("_on_connection_disconnect", None)

    def _keep_alternates(self, client: Connection) -> None:
        """Stop kombu from switching to another node's URL: each connection asks all nodes."""
        client.cycle = None
