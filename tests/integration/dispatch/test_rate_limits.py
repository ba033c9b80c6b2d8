"""Not more at once than an app can bear: a rate, a bound for what is ready, one for what waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Producer
from kombu.exceptions import OperationalError

from celery_delayq.errors import QueueFull
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import wait_until
from tests.apps.control_tasks import RETRY, tasks_of
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import Control

if TYPE_CHECKING:
    from tests.support.travelling import TravellingControl

#: What there is of a queue at one moment: Redis' clock in s, scheduled, ready.
SAMPLE = """
local time = redis.call('TIME')
local ready = 0
for _, step in ipairs({'', '\\6\\0223', '\\6\\0226', '\\6\\0229'}) do
  ready = ready + redis.call('LLEN', KEYS[1] .. step)
end
return {time[1] .. '.' .. string.format('%06d', time[2]),
  redis.call('ZCARD', '{' .. KEYS[1] .. '}:due'), ready}
"""


@pytest.fixture
def limit(make_app: MakeApp, control: Control) -> Callable[[int], None]:
    """Send by an app that may have no more than so many entries scheduled in each queue."""

    def use(most: int) -> None:
        options = {"delayq": {"max_scheduled": most}}
        control.app = tasks_of(make_app(broker_transport_options=options))

    return use


def send_many(control: Control, count: int, queue: str = "celery") -> None:
    """Send tasks of all priorities that are due at about the same time."""
    with control.app.producer_pool.acquire() as producer:
        for n in range(count):
            options = {"queue": queue, "priority": n % 10, "countdown": 0.5}
            control.tasks["tick"].apply_async((n,), producer=producer, **options)


def samples(control: Control, queue: str = "celery") -> list[tuple[float, int, int]]:
    """Look at a queue again and again, until nothing is scheduled in it."""
    found: list[tuple[float, int, int]] = []
    scheduled = 1
    while scheduled and len(found) < 20_000:
        at, scheduled, ready = control.client.eval(SAMPLE, 1, queue)
        found.append((float(at), scheduled, ready))
        time.sleep(0.002)
    return found


def test_no_more_become_ready_in_a_second_than_the_rate_says(control: Control) -> None:
    rate, count = 250, 600
    send_many(control, count)
    # Two dispatchers share the rate.
    for _ in range(2):
        control.start("solo", delayq={"promote_rate": rate}, wait_ready=False)

    seen = samples(control)

    control.wait_empty()
    first = next(at for at, scheduled, _ in seen if scheduled < count)
    last = seen[-1][0]
    burst = rate / 10
    assert (count - burst) / rate - 0.1 < last - first
    for at, scheduled, _ in seen[::10]:
        for later, scheduled_then, _ in seen[::10]:
            if later > at:
                assert scheduled - scheduled_then <= rate * (later - at) + burst + 1


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_no_more_are_ready_than_may_be(control: Control, pool: str) -> None:
    """Of all priorities together; other queues have other limits."""
    send_many(control, 600, "mail")
    send_many(control, 50, "free")
    limits = {"max_ready": 5, "queues": {"mail": {"max_ready": 30}, "free": {"max_ready": 0}}}
    control.start(pool, queues=["mail"], delayq=limits)

    seen = samples(control, "mail")

    control.wait_empty("mail")
    assert 10 < max(ready for _, _, ready in seen) <= 30


def test_what_has_no_room_waits_in_order_and_can_be_cancelled(control: Control) -> None:
    delayq = control.delayq
    control.tasks["work"].apply_async(("blocking", "", "gate"), task_id="blocking")
    control.start("solo", delayq={"max_ready": 4})
    control.wait_runs(1)
    ids = [f"task {n}" for n in range(20)]
    for n, id in enumerate(ids):
        control.tasks["work"].apply_async((id,), task_id=id, countdown=0.1 + n / 100)
    wait_until(lambda: len(control.ready()) == 4, TIMEOUT, "there is no more room")
    control.wait_past(control.now() + 0.5)

    assert control.ready() == ids[:4]
    assert control.scheduled() == [(id, 0) for id in ids[4:]]
    assert [delayq.cancel(ids[n]) for n in (1, 5)] == [Outcome.DONE] * 2
    control.app.control.revoke(ids[6])
    # What is sent or told to run at once is not held back.
    assert delayq.run_now(ids[7])
    control.tasks["work"].apply_async(("at once",), task_id="at once")
    assert len(control.ready()) == 6
    control.open("gate")

    control.wait_runs(19)
    control.wait_empty()
    ran = control.runs("id")
    assert "at once" in ran
    ran.remove("at once")
    assert ran == ["blocking", ids[7], *(id for n, id in enumerate(ids) if n not in (1, 5, 6, 7))]


# -- too late


def dead_letters(control: Control) -> dict[str, str]:
    return {each.id: each.reason for each in control.delayq.store.dead_letters.all("celery")}


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_what_is_too_late_is_a_dead_letter(control: Control, pool: str) -> None:
    work = control.tasks["work"]

    def send(id: str, skip_after: Any, **options: Any) -> None:
        work.apply_async((id,), task_id=id, skip_after=skip_after, **options)

    send("scheduled", 0.2, countdown=0.1)
    send("scheduled, in time", timedelta(minutes=5), countdown=0.1)
    send("at once", 0.2)
    send("at once, in time", timedelta(minutes=5))
    send("promoted", 0.2, countdown=60)
    send("promoted, in time", 300, countdown=60)
    send("of no limit", None, countdown=0.1)
    send("unique", 0.2, countdown=0.1, unique_key="{key}", unique_scope="done")
    for id in ("promoted", "promoted, in time"):
        assert control.delayq.run_now(id)
    control.wait_past(control.now() + 0.5)

    control.start(pool)

    control.wait_runs(4)
    control.wait_empty()
    in_time = {"scheduled, in time", "at once, in time", "promoted, in time", "of no limit"}
    assert set(control.runs("id")) == in_time
    dead = dead_letters(control)
    assert dead.keys() == {"scheduled", "at once", "promoted", "unique"}
    for reason in dead.values():
        assert reason.startswith("skipped: ")
        assert reason.endswith(" ms after it was due, at most 200 allowed")


@pytest.mark.run_by("test")
def test_a_retry_has_its_own_time(control: TravellingControl) -> None:
    """It is not late for having been due, as a first attempt, long before."""
    result = control.tasks["work"].apply_async(("k", "retry"), skip_after=RETRY / 2)
    control.run(2 * RETRY)
    assert result.get(timeout=TIMEOUT) == "k"
    assert dead_letters(control) == {}
    assert control.runs("retries") == [0, 1]


# -- a full queue


def script_calls(control: Control) -> int:
    """Return how many scripts Redis was asked to run."""
    stats = control.client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


def test_a_call_is_refused_when_the_queue_is_full(
    control: Control, limit: Callable[[int], None]
) -> None:
    limit(3)
    work, unique = control.tasks["work"], control.tasks["replace.scheduled"]
    for n in range(2):
        work.apply_async((n,), countdown=60)
    first = unique.apply_async(("k",), countdown=60)
    before = control.unfinished()
    calls: list[dict[str, Any]] = [
        {"countdown": 60},
        {"countdown": 60, "unique_key": "{key}", "unique_scope": "done"},
        {"eta": "2100-01-01T00:00:00+00:00", "priority": 9},
    ]
    for options in calls:
        calls_before = script_calls(control)
        with pytest.raises(QueueFull, match="max_scheduled") as refused:
            work.apply_async(("refused",), **options)
        assert isinstance(refused.value, OperationalError)
        assert script_calls(control) <= calls_before + 2, "it was tried again and again"
    assert control.unfinished() == before

    # What takes the place of another, goes elsewhere or runs at once has room.
    second = unique.apply_async(("k",), countdown=60)
    assert first.state == "REVOKED"
    work.apply_async(("elsewhere",), countdown=60, queue="aside")
    control.start("solo")
    assert work.delay("at once").get(timeout=TIMEOUT) == "at once"
    assert control.delayq.cancel(second.id)
    assert work.apply_async(("again",), countdown=0.1).get(timeout=TIMEOUT) == "again"


def test_a_batch_that_does_not_fit_says_so_and_stores_whole_entries(
    control: Control, limit: Callable[[int], None]
) -> None:
    if not hasattr(Producer, "batch"):
        pytest.skip("this kombu has no Producer.batch")
    from kombu.exceptions import BatchPublishError

    limit(60)
    work, unique = control.tasks["work"], control.tasks["error.scheduled"]

    def send() -> None:
        with control.app.producer_pool.acquire() as producer, producer.batch(max_size=500):
            for n in range(130):
                options = {"countdown": 60 + n, "task_id": f"{n:03}", "producer": producer}
                (unique if n % 2 else work).apply_async((n,), **options)
            work.apply_async(("at once",), task_id="at once", producer=producer)

    with pytest.raises(BatchPublishError, match="max_scheduled"):
        send()

    stored = [f"{n:03}" for n in range(60)]
    assert control.scheduled() == [(id, 0) for id in stored]
    assert control.ready() == ["at once"]
    unfinished = control.unfinished()
    assert unfinished.keys() == {"due", "entries", "tasks", "unique", "ready"}
    assert sorted(id.decode() for id in unfinished["entries"]) == stored
    assert sorted(id.decode() for id in unfinished["due"]) == stored
    assert sorted(member.split(b"\0")[2].decode() for member in unfinished["tasks"]) == stored
    assert sorted(control.owners().values()) == stored[1::2]


@pytest.mark.parametrize("late", [True, False], ids=["late ack", "early ack"])
def test_a_retry_is_not_lost_when_the_queue_is_full(
    control: Control, limit: Callable[[int], None], late: bool
) -> None:
    limit(1)
    control.tasks["work"].apply_async(("there",), task_id="there", countdown=60)
    control.start(conf={"at_least_once": late}, delayq={"max_scheduled": 1})

    result = control.tasks["work"].delay("k", "retry")
    waiting = [("there", 0), (result.id, 1)]
    wait_until(lambda: control.scheduled() == waiting, TIMEOUT, "its retry waits")

    assert control.delayq.run_now(result.id)
    assert result.get(timeout=TIMEOUT) == "k"
    assert control.runs("retries") == [0, 1]
