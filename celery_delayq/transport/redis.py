"""The transport for Redis, over TCP, TLS, a Unix socket or Sentinel."""

from __future__ import annotations

from functools import partial
from typing import Any

from kombu import Connection
from kombu.transport import redis as stock
from redis.exceptions import ResponseError

from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.dispatch.promotion_loop import PromotionLoop
from celery_delayq.errors import NotAllowed
from celery_delayq.integration import worker
from celery_delayq.settings import ON_RABBITMQ
from celery_delayq.store.scripting.errors import translate_errors
from celery_delayq.store.server import checks
from celery_delayq.transport import url
from celery_delayq.transport.channel import Channel as RedisChannel
from celery_delayq.transport.channel import SentinelChannel
from celery_delayq.transport.poller import Poller, Readers


class Transport(url.UrlTransport, stock.Transport):
    """kombu's Redis transport with a schedule."""

    Channel: type[RedisChannel] = RedisChannel
    Poller: type[Poller] = Poller
    cycle: Any

    #: The thread that promotes for several dispatchers; None: each dispatcher has a thread.
    _promotion_loop: PromotionLoop | None = None

    def __init__(self, client: Connection, **kwargs: Any) -> None:
        self._read_options(client, ON_RABBITMQ, self.Channel.from_transport_options)
        #: By the `database_id` of their channels.
        self._dispatchers: dict[str, Dispatcher] = {}
        self._dispatching: set[RedisChannel] = set()
        if self.plain.transport_cls == "sentinel":
            self.Channel = SentinelChannel
            self.default_port = stock.SentinelTransport.default_port
        self._keep_alternates(client)
        super().__init__(client, **kwargs)
        self.cycle.poller.close()
        self.cycle = self.Poller()

    @property
    def database_name(self) -> str:
        """The name of the Redis database: equal for all credentials."""
        plain = self.plain
        sentinel = plain.transport_cls == "sentinel"
        others = sorted(plain.alt or []) if sentinel else []
        master = plain.transport_options.get("master_name") if sentinel else None
        hosts = others or [plain.hostname, plain.port]
        return f"{plain.transport_cls} {hosts} {master} {plain.virtual_host}"

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let the event loop poll the connections."""
        self.cycle.loop = Readers(loop)
        super().register_with_event_loop(connection, self.cycle.loop)
        self.cycle.loop.note_callbacks()
        loop.add_reader(self.cycle.wakeup.fileno(), self.cycle.on_wakeup)

    def establish_connection(self) -> Any:
        """Connect, and refuse a server without the features that scripts need.

        Raises
        ------
        NotAllowed
            Redis refuses user or password. Outside a worker the call ends at once. A worker
            connects again until Redis accepts them.
        """
        try:
            with translate_errors():
                connection = super().establish_connection()
        except NotAllowed as exc:
            if worker.is_here():
                raise
            raise NotAllowed(f"{self.as_uri('')}: {exc}") from exc
        except ResponseError as exc:
            checks.check_refusal(exc)
            raise
        self.check_server(self._avail_channels[0].store.client)
        return connection

    def check_server(self, client: Any) -> None:
        """Refuse a server without the features that scripts need."""
        checks.check_server(client)

    def fleet_looks(self, database_id: str) -> bool:
        """Return whether the fleet looks at the ready lists of a database for its consumers."""
        dispatcher = self._dispatchers.get(database_id)
        return dispatcher is not None and dispatcher.ready_looks.fleet_looks

    def start_dispatcher(self, channel: RedisChannel) -> None:
        """Promote due entries while *channel* consumes."""
        self._dispatching.add(channel)
        if channel.database_id not in self._dispatchers and self.settings.dispatch:
            checks.check_layout(channel.store.client, channel.store.keys)
            checks.warn_of_settings(channel.store.client)
            dispatcher = Dispatcher(
                channel.new_store(),
                self.settings,
                gather=channel.gather,
                loop=self._promotion_loop,
                consumed=partial(self._consumed_in, channel.database_id),
                limits=worker.limit_definitions() if channel.consumer.serves_worker else {},
            )
            self._dispatchers[channel.database_id] = dispatcher
            dispatcher.start()

    def _consumed_in(self, database_id: str) -> list[str]:
        """Return the queues of a database whose messages are leased. For any thread."""
        channels = [each for each in self._dispatching.copy() if each.database_id == database_id]
        return [queue for channel in channels for queue in channel.consumer.leased_queues]

    def stop_dispatcher(self, channel: RedisChannel) -> None:
        """Stop promoting if no other channel consumes from the database of *channel*."""
        self._dispatching.discard(channel)
        if all(each.database_id != channel.database_id for each in self._dispatching):
            dispatcher = self._dispatchers.pop(channel.database_id, None)
            if dispatcher is not None:
                dispatcher.stop()

    def _keep_alternates(self, client: Connection) -> None:
        """Make a failover stay with this transport.

        ``Connection.switch`` uses the scheme of the next URL as the transport's name: with a plain
        ``redis://`` that is stock kombu, without a schedule. It also keeps the former database.
        """
        ours = url.delayq_urls(client.alt or [])
        if ours != (client.alt or []):
            client.alt[:] = ours
            client.cycle = client.failover_strategy(client.alt)
            next(client.cycle)
        if "://" not in (client.hostname or ""):
            client.uri_prefix = None  # with a prefix, a clone of a switched connection has no host
