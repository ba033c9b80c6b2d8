"""A running stock worker does not need the files of the package."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery

import celery_delayq
from celery_delayq.testing import WorkerProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT

pytestmark = pytest.mark.full

APP = """
import sys

from celery import Celery

app = Celery("shop")


@app.task(name="where")
def where():
    return sys.modules["celery_delayq"].__file__
"""


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_stock_worker_logs_no_error_after_the_package_is_uninstalled(
    pool: str,
    tmp_path: Path,
    delayq_redis: RedisUnderTest,
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    """Celery's command line imports the package, though the app does not use it."""
    installed = tmp_path / "celery_delayq"  # before others: the worker runs in this folder
    shutil.copytree(Path(celery_delayq.__file__).parent, installed)
    (tmp_path / "shop.py").write_text(APP)
    worker = delayq_worker("shop:app", pool=pool, cwd=tmp_path, broker_url=delayq_redis.url)
    shutil.rmtree(installed)

    with Celery("sender", broker=delayq_redis.url, backend=delayq_redis.url) as sender:
        for _ in range(2):
            found = sender.send_task("where").get(timeout=TIMEOUT)
            assert found == str(installed / "__init__.py")
    worker.stop()

    assert "ModuleNotFoundError" not in worker.log
    assert "raised" not in worker.log
