"""Stores and removes kombu's bindings; later if the shard of the bindings is away."""

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

#: Seconds after a failure for which bindings are put off without another attempt.
SKIP_SECONDS = 5.0


class LateBindings:
    """Stores and removes bindings at once or, if the shard is away, as soon as it is back.

    Messages for a queue by its name need no binding. Messages for an exchange do.

    Parameters
    ----------
    name : str
        The name of the shard in log lines.
    errors : tuple[type[Exception], ...]
        Raised while the shard is away.
    is_wanted : Callable[[], bool]
        Returns whether to continue the attempts.
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
        """Store or remove a binding, now or later.

        Parameters
        ----------
        binding : Callable[[], Any]
            Stores or removes the binding.
        """
        # In the order of the calls: a queue may be deleted while its binding waits.
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
