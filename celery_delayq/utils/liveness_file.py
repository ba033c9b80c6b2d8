"""A file whose age shows whether a process still works. Probes read only this file."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

logger = logging.getLogger(__name__)

#: Seconds between two touches.
TOUCH_SECONDS = 1.0


class LivenessFile:
    """A file that the loop of a worker touches.

    Parameters
    ----------
    path : str
        The file, which is created if it is missing. Its folder must exist.

    Raises
    ------
    OSError
        The file cannot be created.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._next = 0.0
        self._failed = False
        self._touch()

    def touch(self) -> None:
        """Set the time of the file to now, at most once a second. Errors are only logged."""
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
