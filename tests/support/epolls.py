"""Read what the epolls of a process have registered, from ``/proc``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LINE = re.compile(r"^tfd: *(\d+) .* ino:([0-9a-f]+) ", re.MULTILINE)


def registered(pid: int, epoll: int) -> dict[int, int]:
    """Return the descriptors that an epoll has registered, with the inode of each."""
    text = Path(f"/proc/{pid}/fdinfo/{epoll}").read_text()
    return {int(number): int(inode, 16) for number, inode in _LINE.findall(text)}


def strays(pid: int) -> list[str]:
    """Return descriptors that an epoll has registered and the process has closed.

    Another process still has the file open. The number may belong to another file by now.
    """
    return [*_strays(pid)]


def _strays(pid: int) -> Iterator[str]:
    folder = Path(f"/proc/{pid}/fd")
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # the descriptor is closed by now
            if str(path.readlink()) != "anon_inode:[eventpoll]":
                continue
            for number, inode in registered(pid, int(path.name)).items():
                try:
                    is_same = (folder / str(number)).stat().st_ino == inode
                except FileNotFoundError:
                    is_same = False
                if not is_same:
                    yield f"{number} of epoll {path.name}"
