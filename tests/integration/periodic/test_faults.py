"""What is wrong with one periodic entry, or around it, keeps no other from being fired."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule
from kombu import pools

from celery_delayq import DelayQ
from celery_delayq.periodic import policy
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.schedules import register
from celery_delayq.store.periodic import PeriodicStore, Writing
from celery_delayq.testing import ManagedProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import TIMEOUT, Diary, StartWorker, start, tasks_of
from tests.support.ticking import ticking

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

KEEP: dict[str, Any] = {"catch_up": "all"}


@pytest.fixture
def app(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[Celery]:
    app = Celery("web", broker=delayq_broker_url, backend=delayq_redis.url, set_as_current=False)
    DelayQ(app)
    yield tasks_of(app)
    DelayQ.of(app).close()
    app.close()
    pools.reset()


@pytest.fixture
def delayq(app: Celery) -> DelayQ:
    return DelayQ.of(app)


@pytest.fixture
def diary(delayq_redis: RedisUnderTest) -> Diary:
    return Diary(delayq_redis)


def wait_ticks(diary: Diary, name: str, count: int) -> None:
    wait_until(lambda: len(diary.ticks(name)) >= count, TIMEOUT, f"{count} ticks of {name}")


def add_as_code(delayq: DelayQ, name: str) -> None:
    """Add an entry as a worker of the app ``web`` writes those in its code."""
    definition = Definition.checked(0.5, name=name, task="t", source="code web")
    entry = policy.begin(definition, delayq.store.now_ms(), timezone.utc)
    PeriodicStore(delayq.store).write([Writing(name, "", entry.pack(), entry.look)])


def reasons(delayq: DelayQ, name: str) -> set[str]:
    """Return why ticks of an entry are dead letters."""
    found = delayq.dead_letters()
    return {each.reason for each in found if str(each.task_id).startswith(f"{name}:")}


def test_a_task_that_nobody_knows_is_a_dead_letter_at_each_tick(
    delayq: DelayQ, diary: Diary, delayq_worker: StartWorker
) -> None:
    delayq.periodic.add("unknown", 0.5, "nobody.knows", **KEEP)
    delayq.periodic.add("right", 0.5, "note", **KEEP)
    start(delayq_worker)

    wait_until(lambda: delayq.count_dead() >= 3, TIMEOUT, "three ticks are dead letters")
    wait_ticks(diary, "right", 3)

    assert {dead_letter.task for dead_letter in delayq.dead_letters()} == {"nobody.knows"}
    assert all("nobody.knows" in reason for reason in reasons(delayq, "unknown"))


def test_a_task_that_takes_other_arguments_is_a_dead_letter_at_each_tick(
    delayq: DelayQ, diary: Diary, delayq_worker: StartWorker
) -> None:
    delayq.periodic.add("wrong", 0.5, "note", [1, 2, 3, 4, 5], **KEEP)
    delayq.periodic.add("right", 0.5, "note", **KEEP)
    start(delayq_worker)

    wait_until(lambda: delayq.count_dead() >= 3, TIMEOUT, "three ticks are dead letters")
    wait_ticks(diary, "right", 3)

    assert {dead_letter.exception for dead_letter in delayq.dead_letters()} == {"TypeError"}


def test_a_queue_that_is_broken_keeps_its_own_entries_only(
    delayq: DelayQ, diary: Diary, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    delayq_redis.client.set("{broken}:due", "no sorted set")
    delayq.periodic.add("stuck", 0.5, "note", queue="broken", **KEEP)
    for n in range(3):
        delayq.periodic.add(f"right {n}", 0.5, "note", **KEEP)
    worker = start(delayq_worker)

    for n in range(3):
        wait_ticks(diary, f"right {n}", 3)
    assert "Periodic entry 'stuck' cannot be fired here" in worker.log
    assert "Redis is away" not in worker.log
    delayq_redis.client.delete("{broken}:due")
    wait_until(
        lambda: delayq_redis.client.llen("broken") > 0,
        TIMEOUT,
        "it is fired, once that is repaired",
    )


def test_what_cannot_be_read_here_is_left_to_those_who_can(
    app: Celery, delayq: DelayQ, caplog: pytest.LogCaptureFixture
) -> None:
    gate = PeriodicStore(delayq.store)
    entry = policy.begin(
        Definition.checked(1, name="theirs", task="note"), delayq.store.now_ms(), timezone.utc
    )
    record = entry.pack().replace('{"every":1}', '{"class":"nowhere:Never"}')
    gate.write([Writing("theirs", "", record, 1)])

    with ticking(app):
        wait_until(lambda: "cannot be fired here" in caplog.text, TIMEOUT, "it is told of")
        wait_until(lambda: gate.claim_due(10, 1).records, TIMEOUT, "it is left to others")
        # Whoever looks finds it, as often as that may be: the ticker takes it no more.
        for _ in range(20):
            wait_until(lambda: gate.claim_due(10, 1).records, 0.2, "it is still left to others")
            time.sleep(0.02)


@register
class Overflows(schedule):
    """A schedule that raises another error than is to be expected."""

    def is_due(self, last_run_at: datetime) -> Any:  # noqa: ARG002
        raise OverflowError("too far")


def test_a_schedule_that_fails_keeps_no_other_from_being_fired(
    app: Celery, delayq: DelayQ, caplog: pytest.LogCaptureFixture
) -> None:
    delayq.periodic.add("right", 0.5, "note", **KEEP)
    gate = PeriodicStore(delayq.store)
    found = Definition.checked(1, name="wrong", task="note")
    entry = policy.begin(found, delayq.store.now_ms(), timezone.utc)
    path = f"{Overflows.__module__}:{Overflows.__qualname__}"
    record = entry.pack().replace('{"every":1}', f'{{"class":"{path}","args":[1]}}')
    gate.write([Writing("wrong", "", record, 1)])

    with ticking(app) as [ticker]:
        wait_until(lambda: ticker.fired >= 12, TIMEOUT, "the other one is fired")

    assert "Periodic entry 'wrong' cannot be fired here" in caplog.text
    assert "OverflowError: too far" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "note", "schedule": 1, "options": 5},
        {"task": "note", "schedule": 1, "options": ["ab"]},
        {"task": "note", "schedule": "soon"},
        {"task": "note"},
        5,
    ],
    ids=str,
)
def test_what_is_wrong_in_code_is_left_out(
    diary: Diary, delayq_worker: StartWorker, wrong: Any
) -> None:
    right = {"task": "note", "schedule": 0.5, "catch_up": "all"}
    worker = start(delayq_worker, conf={"beat_schedule": {"wrong": wrong, "right": right}})

    wait_ticks(diary, "right", 2)

    assert "Periodic entry 'wrong' in code is left out" in worker.log


def test_a_dispatcher_knows_the_entries_of_all_modules(
    tmp_path: Path, app: Celery, delayq: DelayQ, delayq_broker_url: str
) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\nfrom celery_delayq import DelayQ\n"
        f"app = Celery('shop', broker={delayq_broker_url!r}, include=['more'])\nDelayQ(app)\n"
    )
    (tmp_path / "more.py").write_text(
        "from shop import app\n"
        "@app.on_after_finalize.connect\n"
        "def periodic(sender, **_):\n"
        "    sender.add_periodic_task(3600, app.signature('t'), name='hourly')\n"
    )
    command = [sys.executable, "-m", "celery", "--workdir", str(tmp_path), "-A", "shop", "delayq"]

    with ManagedProcess([*command, "dispatch"]) as process:
        wait_until(delayq.periodic.list, TIMEOUT, lambda: f"it is written: {process.log}")
        process.term()
        assert process.wait(timeout=TIMEOUT) == 0

    assert [entry.name for entry in delayq.periodic.list()] == ["hourly"]


def test_a_dispatcher_that_cannot_know_all_removes_nothing(
    tmp_path: Path, app: Celery, delayq: DelayQ, delayq_broker_url: str
) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\nfrom celery_delayq import DelayQ\n"
        f"app = Celery('web', broker={delayq_broker_url!r}, include=['missing'])\nDelayQ(app)\n"
    )
    add_as_code(delayq, "soon")
    command = [sys.executable, "-m", "celery", "--workdir", str(tmp_path), "-A", "shop", "delayq"]

    with ManagedProcess([*command, "dispatch"]) as process:
        wait_until(
            lambda: delayq.periodic.list()[0].total_run_count > 1, TIMEOUT, "it fires all the same"
        )
        process.term()
        assert process.wait(timeout=TIMEOUT) == 0

    assert "Periodic entries in code are left to workers" in process.log
    assert [entry.name for entry in delayq.periodic.list()] == ["soon"]


def test_what_calls_write_is_seen_at_once(
    delayq: DelayQ, diary: Diary, delayq_worker: StartWorker
) -> None:
    """Also by a worker that has nothing to look at for long."""
    delayq.periodic.add("far", 3600, "note")
    worker = start(delayq_worker)
    worker.wait_ready()
    before = diary.now()
    delayq.periodic.add("near", 0.5, "note", catch_up="skip")

    wait_ticks(diary, "near", 1)

    # It was not missed, so it was looked at within a second of its time.
    assert diary.ticks("near")[0] / 1000 < before + 2
