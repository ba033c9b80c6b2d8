"""Flower's broker page for a Redis Cluster: Flower itself supports only single servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kombu import Connection

from celery_delayq.integration.broker_urls import CLUSTER_SCHEMES
from celery_delayq.integration.replace import Promise, Replace
from celery_delayq.store.paging import queues_of
from celery_delayq.store.scan import answered
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Command, Steps


class ClusterCounts:
    """Counts ready messages, with the interface of Flower's own broker classes.

    Parameters
    ----------
    url : str
        The URL of the broker as our transport shows it.
    options, use_ssl : Any
        The settings ``broker_transport_options`` and ``broker_use_ssl``.
    """

    def __init__(self, url: str, options: Any, use_ssl: Any) -> None:
        self._url = ";".join(f"delayq+{each}" for each in url.split(";"))
        self._options, self._ssl = options, use_ssl

    async def queues(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the name and the number of ready messages of each queue."""
        return await asyncio.get_running_loop().run_in_executor(None, self._count, [*names])

    def _count(self, names: Sequence[str]) -> list[dict[str, Any]]:
        with Connection(self._url, ssl=self._ssl, transport_options=self._options) as connection:
            stores = connection.default_channel.stores
            known = queues_of(stores, None)

            def steps(store: Store, name: str) -> Steps[int]:
                lists = store.keys.ready_lists(name, known.get(name, store.layout))
                return sum(answered((yield [Command.of("LLEN", each) for each in lists])))

            found = stores.run_each(names, steps)
            return [{"name": name, "messages": number} for name, number in found.items()]


def count_clusters(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Broker.__new__``, which chooses a class by the scheme of the URL."""

    def new(cls: Any, url: str, *args: Any, **options: Any) -> Any:
        if url.partition("://")[0] in CLUSTER_SCHEMES:
            given = options.get("broker_options"), options.get("broker_use_ssl")
            return ClusterCounts(url, *given)
        return stock(cls, url, *args, **options)

    return new


CHANGES = (
    Replace(
        target="flower_broker.Broker.__new__",
        by=count_clusters,
        without="Flower's page of the broker does not know a Redis Cluster, and shows no counts.",
        promise=Promise.REMOTE_CONTROL,
    ),
)
