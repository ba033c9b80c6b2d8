"""The stage on RabbitMQ."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from amqp import InternalError, Message
from kombu import Connection

from celery_delayq import DelayQ, Limit
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import ServerNotFound
from tests.support import TIMEOUT
from tests.support.faults.producer import Producer
from tests.support.faults.stage import Stage
from tests.support.proxy import Proxy
from tests.support.proxy_amqp import AmqpProxy
from tests.support.skips import left_out


class RabbitMQStage(Stage):
    """A stage on an empty virtual host of RabbitMQ.

    There are no leases: a worker without a connection has no messages.

    Parameters
    ----------
    server
        A shared node; None for nodes of its own.
    conf
        Celery's settings of producers and workers.
    broker_options
        Arguments of `EmbeddedRabbitMQ` for nodes of its own.
    """

    def __init__(
        self,
        folder: Path,
        server: EmbeddedRabbitMQ | None = None,
        *,
        conf: Mapping[str, Any] | None = None,
        **broker_options: Any,
    ) -> None:
        self._shared = server
        super().__init__(folder, lease=0.0, broker_options=broker_options)
        self._conf = dict(conf or {})
        self._delayq = {}

    @property
    def port(self) -> int:
        """The port of the first node."""
        port = urlsplit(str(self.broker.url())).port
        assert port is not None
        return port

    def proxy(self) -> Proxy:
        """Return a new proxy before the first node."""
        return self._resources.enter_context(AmqpProxy(self.port))

    def new_producer(
        self,
        through: Proxy | None = None,
        *,
        stock: bool = False,
        limits: Mapping[str, Limit] | None = None,
    ) -> Producer:
        """Return another producer."""
        producer = super().new_producer(through, stock=stock, limits=limits)
        producer.app.conf.update(self._conf)
        producer.recognizes = False
        return producer

    def unfinished(self) -> dict[str, set[str]]:
        """Return the number of messages of each queue, with the unacknowledged ones."""
        return {name: {f"{count} messages"} for name, count in self._queues().items() if count}

    def _queues(self) -> dict[str, int]:
        """Return the queues with their number of messages, some seconds old."""
        path = f"queues/{self.vhost}?disable_stats=true&enable_queue_totals=true"
        queues = self.broker.ask("GET", path)
        return {
            each["name"]: each.get("messages", 0) for each in queues if each["type"] != "stream"
        }

    def _new_broker(self, options: Mapping[str, Any]) -> Any:
        if self._shared is not None:
            return self._shared
        try:
            return EmbeddedRabbitMQ(**options)
        except ServerNotFound as exc:
            raise left_out(str(exc)) from exc

    def _enter_broker(self, stack: ExitStack) -> None:
        if self._shared is None:
            stack.enter_context(self.broker)
        self.broker.start()  # an earlier test may have ended it
        self.vhost: str = self.broker.new_vhost()
        if self._shared is not None:
            stack.callback(self.broker.delete_vhost, self.vhost)

    def _url(self, through: Proxy | None) -> str:
        if through is None:
            url: str = self.broker.urls("delayq+amqp", self.vhost)
            return url
        return f"delayq+amqp://guest:guest@127.0.0.1:{through.port}/{self.vhost}"

    def _left_in(self) -> dict[str, set[str]]:
        """Read all messages. This takes them for a moment, so no worker may run."""
        found = defaultdict(set)
        for queue in self._queues():
            for message in self._messages(queue):
                found[queue].add(str(message.headers.get("id")))
        found["dead"] = {each.id for each in DelayQ.of(self.producer.app).dead_letters()}
        return found

    def _messages(self, queue: str) -> Iterator[Message]:
        """Get messages. RabbitMQ requeues them when the connection ends, so one may come twice.

        A quorum queue whose leader changes may not answer in time. RabbitMQ then ends the
        connection with error 541, and this method asks again on a new connection.
        """
        ends = time.monotonic() + TIMEOUT
        while True:
            try:
                with Connection(self.broker.url(vhost=self.vhost)) as connection:
                    get = partial(connection.default_channel.basic_get, queue)
                    yield from iter(get, None)
                return
            except InternalError:
                if time.monotonic() > ends:
                    raise
