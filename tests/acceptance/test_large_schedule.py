"""Pages, `top` and `plot` beside very many scheduled tasks: what they cost, and how they look."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from celery_delayq.store.scripting import scripts
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.acceptance.browser import Browser
from tests.acceptance.test_delayed_pages import KINDS, WIDTHS, look_at, running
from tests.integration.conftest import MakeApp
from tests.support import dead_letters
from tests.support.cli import CommandLine
from tests.support.flower import OPERATOR, Site, page_paths, running_flower, serving_pages
from tests.support.runs import finished
from tests.support.slow_log import longest_calls

#: The tests measure the time of calls. Filling takes a minute.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

#: Numbers of tasks.
SOME, MANY = 100_000, 1_000_000

#: Most CPU seconds of a page beyond the calls that it makes, and most µs of a call of a script, as
#: in the rows of the benchmark.
MOST_SECONDS, MOST_MICROSECONDS = 0.2, 5_000

#: Number of looks, and the most if a look or a call takes long. The best one counts, since the
#: processor may be busy with others.
TRIES, MOST_TRIES = 5, 30

TASKS, QUEUES, CUSTOMERS, RUNS, DEAD = 20, ("celery", "mail", "reports"), 1000, 10_000, 5_000

HOUR, DAY = 3600, 86_400


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(broker_transport_options={"delayq": {"history": RUNS}})


@pytest.fixture
def filled(request: pytest.FixtureRequest, app: Celery) -> DelayQ:
    """Very many tasks of a month, runs, dead letters, a pause and periodic entries."""
    number, delayq = request.param, DelayQ.of(app)
    delayq.schedule_many(
        Item(
            args=(f"customer {n % CUSTOMERS}", n),
            countdown=60 + n % HOUR if n % 10 == 0 else HOUR + n * 37 % (30 * DAY),
            id=f"task-{n}",
            task=f"shop.task-{n % TASKS}",
            queue=QUEUES[n % len(QUEUES)],
        )
        for n in range(number)
    )
    now = delayq.store.now_ms()
    for start in range(0, RUNS, 100):
        runs = [finished(f"run-{n}", now - n, due=now - n - 70) for n in range(start, start + 100)]
        delayq.store.history.add("me", start + 1, RUNS, runs)
    dead_letters.fill(delayq, DEAD)
    for n in range(50):
        delayq.periodic.add(f"entry-{n}", 60 + n, "shop.task-1")
    delayq.pause(task="shop.task-3")
    return delayq


@pytest.fixture
def looks(app: Celery, filled: DelayQ) -> Iterator[Mapping[str, Callable[[], Any]]]:
    """All ways to look, by their names."""
    paths = page_paths(task=["task-7"], entry=["entry-7"])
    del paths["health"]  # it checks all, and says that it takes seconds
    more = (
        "?step=day&by=task",
        "/scheduled?task=shop.task-7&due_from=2d",
        "/scheduled?queue=mail&due_to=1h",
        "/scheduled?argument=customer+77",
        "/dead?exception=ValueError",
    )
    cli = CommandLine(app)

    def command(*words: str) -> None:
        ran = cli(*words)
        assert (ran.code, ran.err) == (0, ""), ran

    with serving_pages(app) as site:

        def page(path: str) -> None:
            answer = site.get(f"/delayed{path}")
            assert answer.status == 200, answer.text

        yield {
            **{path: partial(page, path) for path in (*paths.values(), *more)},
            "top": partial(command, "top", "--once"),
            "plot": partial(command, "plot", "--step", "hour", "--by", "task"),
        }


@pytest.mark.parametrize("filled", [SOME, MANY], indirect=True)
def test_no_look_takes_long_or_holds_redis_up(
    looks: Mapping[str, Callable[[], Any]], delayq_redis: RedisUnderTest
) -> None:
    client: Redis = delayq_redis.client
    client.config_set("slowlog-max-len", 100_000)
    client.config_set("slowlog-log-slower-than", 1000)  # µs
    seconds: dict[str, float] = {}
    slow: dict[str, Counter[str]] = {}
    for name, look in looks.items():
        for turn in range(MOST_TRIES):
            is_fast = turn > 0 and seconds[name] <= MOST_SECONDS and not too_slow(slow[name])
            if turn >= TRIES and is_fast:
                break
            longest_calls(client)  # drops the calls so far
            began = time.process_time()
            look()
            spent = time.process_time() - began
            calls = longest_calls(client)
            # A call that takes long each time does so by itself.
            slow[name] = slow[name] & calls if turn else calls
            seconds[name] = min(spent, seconds.get(name, spent))

    assert {name: it for name, it in seconds.items() if it > MOST_SECONDS} == {}
    assert {look: found for look, its in slow.items() if (found := too_slow(its))} == {}


def too_slow(calls: Mapping[str, int]) -> dict[str, int]:
    """Return the scripts that take too long, with their µs."""
    ours = scripts.names_with_variants()
    return {name: us for name, us in calls.items() if name in ours and us > MOST_MICROSECONDS}


@pytest.mark.parametrize("filled", [SOME], indirect=True)
def test_flowers_own_pages_are_as_fast_as_without_us(
    filled: DelayQ, delayq_redis: RedisUnderTest, tmp_path: Path
) -> None:
    broker = delayq_redis.server.url_for("delayq+redis")
    with ExitStack() as stack:
        ours, alone = (
            stack.enter_context(running_flower(broker, delayq_redis.url, tmp_path, app=app))[0]
            for app in ("flower_tasks:app", "late_flower:app")
        )
        assert "Delayed" in ours.get("/workers").text
        assert "Delayed" not in alone.get("/workers").text
        slower = {}
        for page in ("/workers", "/tasks"):
            # The best of many in turns: others use the processor too.
            both = [(seconds_of(ours, page), seconds_of(alone, page)) for _ in range(100)]
            best = [min(each) for each in zip(*both, strict=True)]
            if best[0] > 1.5 * best[1] + 0.005:
                slower[page] = best
    assert slower == {}


def seconds_of(site: Site, page: str) -> float:
    began = time.perf_counter()
    assert site.get(page).status == 200
    return time.perf_counter() - began


@pytest.mark.parametrize("filled", [MANY], indirect=True)
def test_each_page_fits_and_everybody_can_read_it(
    filled: DelayQ, delayq_redis: RedisUnderTest, tmp_path: Path
) -> None:
    """In Flower, old and new, with and without a login and a prefix, and alone."""
    wrong = []
    paths = (
        *page_paths(task=["task-7"], entry=["entry-7"]).values(),
        "/scheduled?argument=customer+77",
    )
    for kind in KINDS:
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        with running(kind, delayq_redis, folder) as site, Browser(folder / "browser") as browser:
            if "login" in kind or kind == "alone":
                browser.send_headers(site.as_user(OPERATOR).headers)
            for width in WIDTHS:
                found = [each for path in paths for each in look_at(browser, site, path, width)]
                wrong += [(kind, *each) for each in found]
    assert wrong == []
