"""Run a tier of the tests: ``python -m tests.run short|full|nightly|all [pytest options]``.

``short`` is ``make test``: all tests that are marked neither ``full`` nor ``nightly``. ``full`` is
``make test-full``: those marked ``full``, all of kills, cuts and losses among them. ``nightly`` is
a part of ``make nightly``: the rest, and on every other server there is what is marked
``each_server``. ``all`` runs every test on every server.
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
#: How many tests run side by side, on each core: most of the full tier's tests wait half of their
#: time, for a lease to end or a task to be due.
PER_CORE = {"short": 3, "full": 3, "nightly": 2, "all": 2}
MOST = 8
EACH_SERVER = "each_server"
#: Tiers, and which marks their tests have: on the first server, and on each other one.
TIERS = {
    "short": ("not full and not nightly", None),
    "full": ("full and not nightly", None),
    "nightly": ("nightly", EACH_SERVER + " and not other_broker"),
    "all": ("", ""),
}
#: What pytest returns when no test was chosen.
NOTHING_RUN = 5


def folders_with(marks: str) -> list[str]:
    """Return the folders with a mark that is set by name; each process collects them first."""
    if EACH_SERVER not in marks:
        return [*ALL]
    return [
        folder
        for folder in ALL
        if any(EACH_SERVER in path.read_text("utf-8") for path in (TESTS / folder).rglob("*.py"))
    ]


def run(server: Path, marks: str, per_core: int, options: list[str]) -> int:
    """Run the tests with these marks on *server* and return pytest's exit code."""
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    print(f"== {marks or 'all'} on {version.stdout.split(' sha')[0].strip()}", flush=True)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            str(min(per_core * (os.cpu_count() or 1), MOST)),
            "-m",
            marks,
            *(str(TESTS / folder) for folder in folders_with(marks)),
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
        ("in a wheel", wheel_redis_server),
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


def main(arguments: list[str]) -> int:
    """Run a tier once."""
    if not arguments or arguments[0] not in TIERS:
        sys.exit(f"usage: python -m tests.run {'|'.join(TIERS)} [pytest options]")
    tier, *options = arguments
    on_first, on_others = TIERS[tier]
    first, *others = servers()
    codes = [run(first, on_first, PER_CORE[tier], options)]
    if on_others is not None:
        codes += [run(other, on_others, PER_CORE[tier], options) for other in others]
    # An option such as -k may leave nothing for one of them.
    return int(any(code not in (0, NOTHING_RUN) for code in codes) or min(codes) == NOTHING_RUN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
