"""A file whose age says whether a process still works: probes look at it, and ask nobody else."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

logger = logging.getLogger(__name__)

#: Seconds between two touches.
TOUCH_SECONDS = 1.0


class LivenessFile:
    """A file that is touched by the loop of a worker.

    Parameters
    ----------
    path : str
        Made here, and again where it was deleted. Its folder must exist.

    Raises
    ------
    OSError
        It cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._next = 0.0
        self._failed = False
        self._touch()

    def touch(self) -> None:
        """Set its time to now, at most once a second; an error is logged, and does no harm."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + TOUCH_SECONDS
        try:
            self._touch()
        except OSError as exc:
            if not self._failed:
                logger.error("liveness_file is not touched, probes will fail: %s", exc)
            self._failed = True
        else:
            self._failed = False

    def _touch(self) -> None:
        try:
            os.utime(self._path)
        except FileNotFoundError:
            Path(self._path).touch()
