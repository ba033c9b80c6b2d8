"""Bindings of kombu that are stored or removed later, since the shard that has them is away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

#: Seconds between two attempts.
RETRY_SECONDS = 0.5

#: Seconds after a failure for which nobody waits for the shard again.
SKIP_SECONDS = 5.0


class LateBindings:
    """Stores and removes bindings at once or, where the shard is away, as soon as it is back.

    Queues that are reached by their name need none: bindings are for other exchanges.

    Parameters
    ----------
    name : str
        The shard, for log lines.
    errors : tuple[type[Exception], ...]
        Say that it is away.
    is_wanted : Callable[[], bool]
        Whether to go on trying.
    """

    def __init__(
        self, name: str, errors: tuple[type[Exception], ...], is_wanted: Callable[[], bool]
    ) -> None:
        self._name, self._errors, self._is_wanted = name, errors, is_wanted
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], Any]] = []
        self._failed = float("-inf")
        self._is_running = False

    def store(self, binding: Callable[[], Any]) -> None:
        """Store or remove a binding by this call, now or later."""
        # In their order: a queue may be deleted whose binding waits.
        if not self._waiting and time.monotonic() - self._failed > SKIP_SECONDS:
            try:
                binding()
            except self._errors as exc:
                self._failed = time.monotonic()
                logger.warning("%s is away, bindings are stored later: %s", self._name, exc)
            else:
                return
        with self._lock:
            self._waiting.append(binding)
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._store_later, name="delayq-bindings", daemon=True).start()

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_running = bool(self._waiting) and self._is_wanted()
            return self._is_running

    def _store_later(self) -> None:
        loop = ReconnectingLoop(
            "storing bindings",
            logger,
            go_on=self._goes_on,
            wait=time.sleep,
            retry=RETRY_SECONDS,
            outages={self._name + " is away": self._errors},
        )

        def store_first() -> None:
            try:
                self._waiting[0]()
            except self._errors:
                raise
            except ResponseError as exc:
                logger.error("%s refuses a binding: %s", self._name, exc)
            self._failed = float("-inf")
            del self._waiting[0]
            loop.recovered()

        loop.run(store_first)
