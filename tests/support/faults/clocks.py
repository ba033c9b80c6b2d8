"""A process whose clock is wrong, by libfaketime; its monotonic clock goes on as it should."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.left_out import left_out

_LIBRARY = "libfaketime.so.1"
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")

#: libfaketime 0.9.10 refuses what ``time.sleep`` of Python 3.11 and newer asks for (a sleep until a
#: moment of the monotonic clock, EINVAL) when it is to leave that clock alone.
_SLEEP = """\
import select, time

def _sleep(seconds):
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)

time.sleep = _sleep
"""


def wrong_clock(seconds: int, folder: Path) -> dict[str, str]:
    """Return the environment of a Python process whose clock is off by so many seconds.

    Parameters
    ----------
    folder
        Where to put what the process imports first.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SLEEP)
    return {
        "LD_PRELOAD": str(_library()),
        "FAKETIME": f"{seconds:+d}s",
        "DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def _library() -> Path:
    """Return libfaketime; without it the test is left out, with CI=true it fails."""
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
