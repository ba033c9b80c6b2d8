"""One suite runs on Docker and on processes: nothing but the plugin differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import TIMEOUT

pytestmark = pytest.mark.full

SUITE = """\
import pytest
from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup, RedisTestBackend, RedisTestBroker, add


@pytest.fixture
def celery_broker(celery_redis_broker: RedisTestBroker) -> RedisTestBroker:
    return celery_redis_broker


@pytest.fixture
def celery_backend(celery_redis_backend: RedisTestBackend) -> RedisTestBackend:
    return celery_redis_backend


def test_a_task_runs(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(ping=True)
    result = add.s(1, 2).apply_async(queue=celery_setup.worker.worker_queue)
    assert result.get(timeout=RESULT_TIMEOUT) == 3
"""

PLUGIN = "celery_delayq.testing.pytest_celery"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def run_pytest(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=suite,
        # No Docker, also where there is one.
        env={**os.environ, "DOCKER_HOST": "unix:///nonexistent/docker.sock"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def test_with_the_plugin_on_the_command_line_it_runs_on_processes(suite: Path) -> None:
    done = run_pytest(suite, "-p", PLUGIN)

    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.nightly
def test_with_the_plugin_in_conftest_it_runs_on_processes(suite: Path) -> None:
    (suite / "conftest.py").write_text(f'pytest_plugins = ["{PLUGIN}"]\n')

    done = run_pytest(suite)

    assert "1 passed" in done.stdout, done.stdout


def test_without_the_plugin_it_asks_for_docker(suite: Path) -> None:
    done = run_pytest(suite)

    assert "1 error" in done.stdout, done.stdout
    assert "DockerException" in done.stdout
