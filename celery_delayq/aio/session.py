"""The session of a client on a loop: its calls run in greenlets of the bridge."""

from __future__ import annotations

from celery import Celery

from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores


class LoopSession(Session):
    """A session with a given store, which reconnects by itself.

    Parameters
    ----------
    app : Celery
        The app.
    store : Store
        Our data, on connections of a loop.
    """

    def __init__(self, app: Celery, store: Store) -> None:
        super().__init__(app)
        self._loop_stores = Stores.single(store)

    @property
    def stores(self) -> Stores:
        """Our data in the app's broker."""
        return self._loop_stores

    @property
    def on_rabbitmq(self) -> bool:
        """Always False: with RabbitMQ the sync client runs in threads."""
        return False
