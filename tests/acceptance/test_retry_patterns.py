"""Random patterns of failures: each task has the attempts of its policy, and ends in one place."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import FAST_START, POOLS, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.pattern_tasks import Fate, Pattern, draw, fate_of, tasks_of
from tests.integration.conftest import MakeApp
from tests.support.faults.scale import SEED, scaled
from tests.support.scene import Scene

pytestmark = pytest.mark.full

StartWorker = Callable[..., WorkerProcess]

#: The policy is promised for 10,000 tasks: `python -m tests.soak`.
COUNT = scaled(500, 10_000)
#: Pools of the workers that share the queue.
RUN_ON = scaled(("solo", "threads"), POOLS)
#: Seconds for all tasks.
PATIENCE = scaled(400, 1800)


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app(task_acks_late=True, task_reject_on_worker_lost=True))


def publish(app: Celery, patterns: list[Pattern]) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for each in patterns:
            task = app.tasks[each.task]
            task.apply_async(([*each.ends],), task_id=each.id, producer=producer, **each.options)


def attempts(scene: Scene) -> dict[str, list[tuple[int, float]]]:
    """Return the attempts of each task in their order: number of retries, and start (ms)."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in scene.client.lrange("attempts", 0, -1):
        id, retries, at = line.decode().split(" ")
        found[id].append((int(retries), float(at)))
    return found


def wait_settled(scene: Scene, total: int) -> None:
    """Wait until only dead letters are left, and no attempt has begun since."""
    before = 0

    def settled() -> bool:
        nonlocal before
        known, before = before, scene.client.llen("attempts")
        # A message may move to a place that was read already.
        return bool(known == before and not scene.client.llen("celery") and not scene.unfinished())

    wait_until(settled, PATIENCE, lambda: f"{total} attempts; {before} so far", interval=0.2)


def wrong(fate: Fate, seen: list[tuple[int, float]], is_dead: bool) -> str:
    """Return the difference from the promised outcome, "" for none."""
    if [retries for retries, _ in seen] != list(range(fate.attempts)):
        return f"attempts {[retries for retries, _ in seen]}"
    if is_dead == fate.done:
        return "is dead" if is_dead else "is not dead"
    starts = [at for _, at in seen]
    for began, again, wait in zip(starts, starts[1:], fate.waits, strict=False):
        if again < began + wait * 1000:
            return f"an attempt {again - began:.1f} ms after the last one, and not {wait * 1000} ms"
    return ""


@pytest.mark.timeout(PATIENCE + 60)
def test_each_task_has_the_attempts_of_its_policy_and_ends_in_one_place(
    app: Celery,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
    record_property: Callable[[str, object], None],
) -> None:
    chance, scene, delayq = random.Random(SEED), Scene(delayq_redis), DelayQ.of(app)
    patterns = [draw(str(n), chance) for n in range(COUNT)]
    fates = {each.id: fate_of(each) for each in patterns}
    total = sum(fate.attempts for fate in fates.values())
    dying = {id for id, fate in fates.items() if not fate.done}
    for pool in RUN_ON:
        delayq_worker("tests.apps.pattern_tasks:app", pool=pool, extra_args=FAST_START)

    publish(app, patterns)
    wait_settled(scene, total)

    seen, dead_letters = attempts(scene), [*delayq.dead_letters()]
    dead = Counter(str(dead_letter.task_id) for dead_letter in dead_letters)
    problems = {
        each.id: (each, problem)
        for each in patterns
        if (problem := wrong(fates[each.id], seen[each.id], each.id in dead))
    }
    lost = len([id for id in fates if not seen[id]])
    twice = len([id for id, number in dead.items() if number > 1])
    row = {"published": COUNT, "runs": sum(map(len, seen.values())), "lost": lost, "twice": twice}
    record_property("verdict", {**row, "notes": {"retries": f"{len(dead)} dead letters"}})
    print(row, f"{len(dead)} dead letters")

    assert not problems, [*problems.values()][:5]
    assert twice == 0
    assert dead.keys() == dying
    retries = {dead_letter.task_id: dead_letter.retries for dead_letter in dead_letters}
    assert retries == {id: fates[id].attempts - 1 for id in dying}
    by_attempts = Counter(fate.attempts for fate in fates.values())
    assert min(by_attempts[n] for n in range(1, 6)) > COUNT // 100, "that was no mixture"
    assert COUNT // 4 < len(dying) < COUNT * 3 // 4
