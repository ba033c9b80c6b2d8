"""Suites of users: Django with and without transactions, coroutines, and several processes."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.skips import left_out

pytestmark = pytest.mark.full

SETTINGS = """
SECRET_KEY = "test"
USE_TZ = True
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CELERY_BROKER_URL = "sqs://nobody"
CELERY_RESULT_BACKEND = "rediss://nobody:1/0"
CELERY_TASK_ALWAYS_EAGER = True
CELERY_TASK_SERIALIZER = "json"
"""
APP = """
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
MODELS = """
from django.db import models
class Order(models.Model):
    name = models.CharField(max_length=20)
    reminded = models.IntegerField(default=0)
"""
TASKS = """
from celery import shared_task
from shop.models import Order
@shared_task
def remind(id):
    order = Order.objects.get(id=id)
    order.reminded += 1
    order.save()
    if order.reminded < 2:
        remind.apply_async((id,), countdown=3600)
"""
CONFTEST = """
import pytest
from shop.celery import app
pytest_plugins = ["celery_delayq.testing.fixtures"]
"""
DJANGO_TESTS = """
import pytest
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from celery_delayq.testing import assert_not_scheduled, assert_scheduled, scheduled, time_travel
from shop.celery import app
from shop.models import Order
from shop.tasks import remind

def test_a_task_sees_the_transaction_of_the_test(db, delayq_time):
    order = Order.objects.create(name="ada")
    remind.apply_async((order.id,), countdown=86400)
    assert delayq_time.travel(days=2) == 2
    order.refresh_from_db()
    assert order.reminded == 2
    assert connection.in_atomic_block

def test_nothing_of_the_other_tests_is_left(db, delayq_time):
    assert not Order.objects.exists() and not scheduled()

def test_on_commit(db, delayq_time, django_capture_on_commit_callbacks):
    order = Order.objects.create(name="ada")
    with django_capture_on_commit_callbacks(execute=True):
        assert remind.delay_on_commit(order.id) is None
        assert remind.apply_async_on_commit((order.id,), countdown=3600) is None
        assert_not_scheduled(remind)
    assert_scheduled(remind, args=(order.id,), within=3600, count=1)
    assert delayq_time.travel(hours=2) == 3
    order.refresh_from_db()
    assert order.reminded == 3

def test_without_a_capture_nothing_is_sent_before_the_commit(db, delayq_time):
    with transaction.atomic():
        remind.apply_async_on_commit((1,), countdown=60)
    assert_not_scheduled(remind)

@pytest.mark.django_db(transaction=True)
def test_a_real_commit_sends_and_a_rollback_does_not(delayq_time):
    with transaction.atomic():
        order = Order.objects.create(name="ada")
        remind.apply_async_on_commit((order.id,), countdown=86400)
        assert_not_scheduled(remind)
    assert_scheduled(remind, args=[order.id], within=86400)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        remind.apply_async_on_commit((order.id,), countdown=60)
        1 / 0
    assert len(scheduled(remind)) == 1
    delayq_time.travel(days=1)
    assert Order.objects.get().reminded == 1

class Plain(TestCase):
    def test_a_day_later(self):
        order = Order.objects.create(name="ada")
        with time_travel(app) as time:
            with self.captureOnCommitCallbacks(execute=True):
                remind.apply_async_on_commit((order.id,), countdown=86400)
            time.travel(days=1)
        order.refresh_from_db()
        self.assertEqual(order.reminded, 1)

class Committing(TransactionTestCase):
    def test_a_day_later(self):
        with time_travel(app) as time:
            with transaction.atomic():
                order = Order.objects.create(name="ada")
                remind.apply_async_on_commit((order.id,), countdown=86400)
            time.travel(days=1)
        order.refresh_from_db()
        self.assertEqual(order.reminded, 1)
"""
PLAIN_TESTS = """
import asyncio
import os
import pytest
from celery import Celery
from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ

app = Celery("plain", broker="amqp://nobody:1//")
DelayQ(app)
ran = []

@app.task
def note(name):
    ran.append(name)

@app.task
def loops():
    asyncio.run(asyncio.sleep(0))
    ran.append("loops")

@pytest.mark.parametrize("number", range(6))
def test_each_process_has_a_server(number, delayq_time, delayq_redis):
    note.apply_async((number,), countdown=86400)
    assert delayq_time.travel(days=1) == 1
    assert ran.pop() == number
    with open("ports.txt", "a") as ports:
        print(os.getpid(), delayq_redis.port, file=ports)

@pytest.mark.asyncio
async def test_a_coroutine(delayq_time):
    async with AsyncDelayQ(app) as delayq:
        await delayq.apply_async(note, ("async",), countdown=86400)
    loops.apply_async(countdown=2 * 86400)
    assert delayq_time.travel(days=1) == 1
    assert await asyncio.to_thread(delayq_time.travel, days=1) == 1
    assert ran[-2:] == ["async", "loops"]
"""


SHOP = """
from celery import Celery
from celery_delayq import DelayQ
app = Celery("shop", broker="delayq+redis://production.example.org:6379/0")
delayq = DelayQ(app)
sent = []
@app.task
def remind(name):
    sent.append(name)
"""
EMPTY = """
import pytest, shop
@pytest.fixture(autouse=True)
def nothing_sent():
    shop.sent.clear()
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return folder


def run(folder: Path, *args: str) -> str:
    """Run a suite; return its last lines."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:celery", "-p", "no:cacheprovider", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def need(package: str) -> None:
    if find_spec(package) is None:
        raise left_out(f"a suite with {package}: pip install {package.replace('_', '-')}")


def test_a_suite_of_django(tmp_path: Path) -> None:
    need("pytest_django")
    folder = write(
        tmp_path,
        settings=SETTINGS,
        conftest=CONFTEST,
        test_shop=DJANGO_TESTS,
        shop__celery=APP,
        shop__models=MODELS,
        shop__tasks=TASKS,
        shop____init__="from shop.celery import app\n",
    )

    assert run(folder, "--ds=settings").startswith("7 passed")


def test_the_page_says_what_works(tmp_path: Path) -> None:
    """The first examples of the page, as they are."""
    page = Path("docs/testing.md").read_text("utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    folder = write(
        tmp_path, shop=SHOP, conftest=EMPTY, test_first=first, test_second=first + second
    )

    assert len([line for line in first.splitlines() if line]) <= 8
    assert run(folder).startswith("3 passed")


def test_a_suite_of_coroutines_in_several_processes(tmp_path: Path) -> None:
    need("pytest_asyncio")
    folder = write(
        tmp_path,
        conftest='pytest_plugins = ["celery_delayq.testing.fixtures"]\n',
        test_plain=PLAIN_TESTS,
    )

    assert run(folder, "-n", "2").startswith("7 passed")
    lines = {*(folder / "ports.txt").read_text().splitlines()}
    pids, ports = zip(*map(str.split, lines), strict=True)
    assert len(lines) == len({*pids}) == len({*ports}) == 2


WORKER_TESTS = """
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_delayq import DelayQ
from celery_delayq.errors import TravelError
from celery_delayq.testing import wait_until
from celery_delayq.testing.travel.traveller import TimeTravel

app = Celery("plain", broker="amqp://nobody:1//")
DelayQ(app)
ran = []

@app.task
def note(name):
    ran.append(name)

def test_one_that_runs(monkeypatch, delayq_redis, delayq_broker_url):
    monkeypatch.setattr(app.conf, "broker_url", delayq_broker_url)
    with start_worker(app, perform_ping_check=False):
        with pytest.raises(TravelError, match="or a real worker.*: one runs in this process"):
            with TimeTravel(app, delayq_redis.server):
                pass
        note.delay("by the worker")
        wait_until(lambda: ran == ["by the worker"])

def test_one_that_has_ended_does_no_harm(delayq_time):
    note.apply_async(("travelling",), countdown=60)
    assert delayq_time.travel(minutes=1) == 1

def test_one_that_starts_meanwhile(delayq_time):
    with pytest.raises(SystemExit, match="or a real worker, whose clock"):
        with start_worker(app, perform_ping_check=False):
            pass
    note.apply_async(("still travelling",), countdown=60)
    assert delayq_time.travel(minutes=1) == 1
"""


def test_a_worker_in_the_process_of_the_test(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        conftest='pytest_plugins = ["celery_delayq.testing.fixtures"]\n',
        test_worker=WORKER_TESTS,
    )

    assert run(folder).startswith("3 passed")
