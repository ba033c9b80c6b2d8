"""A real Prometheus and Alertmanager with a real app: each alert, and each panel."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_delayq import Limit
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.faults.clocks import wrong_clock
from tests.support.monitored import FOR, INTERVAL, ROOT, Monitored, alerts, draw, need_prometheus

#: Rules that wait for seconds also fire on a busy machine.
pytestmark = pytest.mark.nightly


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """A file with the error of the second exporter's clock."""
    path = tmp_path / "clock"
    path.write_text("+0s\n")
    return path


@pytest.fixture
def monitored(tmp_path: Path, clock: Path) -> Iterator[Monitored]:
    need_prometheus()
    skewed = wrong_clock(0, tmp_path / "imported")
    del skewed["FAKETIME"]  # the variable would have priority over the file
    skewed |= {"FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    with Monitored(tmp_path, skewed) as monitored:
        yield monitored


def expressions() -> list[str]:
    """Return all expressions of the dashboard, with values for its variables."""

    def inside(data: Any) -> Iterator[str]:
        if isinstance(data, dict):
            if isinstance(data.get("expr"), str):
                yield data["expr"]
            data = [*data.values()]
        if isinstance(data, list):
            for each in data:
                yield from inside(each)

    board = json.loads((ROOT / "contrib" / "grafana" / "grafana.json").read_text("utf-8"))
    plain = (each.replace("$job", ".*").replace("$queue", ".*") for each in inside(board))
    return [each.replace("$__rate_interval", "15s") for each in plain]


def remind(seconds: float) -> None:
    """Stand for the worker's task."""


def test_each_alert_fires_and_clears_and_each_panel_has_values(
    monitored: Monitored, clock: Path, tmp_path: Path
) -> None:
    begin = time.time()
    send = monitored.app.send_task
    worker = monitored.worker("celery")
    monitored.client.config_set("maxmemory", 1_000_000_000)
    monitored.delayq.periodic.add("report", 1, "shop.report")
    monitored.delayq.store.task_limits.announce(
        {"pay": Limit("pay", concurrency=8).definition.text}
    )
    load = monitored.load()
    send("shop.remind", countdown=3600)
    known = alerts()

    # Given a healthy app, each panel has a value, and no alert fires.
    left = expressions()

    def all_have_values() -> bool:
        next(load)
        # Ready messages of each task are counted from time to time: there must be some.
        for _ in range(30 - monitored.client.llen("celery")):
            send("shop.remind", (0.05,))
        left[:] = [each for each in left if not any(map(math.isfinite, monitored.values(each)))]
        return not left

    wait_until(all_have_values, TIMEOUT, lambda: f"values of {left}")
    assert monitored.fired == []
    picture = tmp_path / "dashboard.png"
    draw(monitored, picture, 30)
    assert picture.stat().st_size > 20_000

    def expect(*names: str) -> None:
        wanted = {f"DelayQ{name}" for name in names}
        wait_until(
            lambda: wanted <= {*monitored.fired},
            TIMEOUT,
            lambda: f"{wanted - {*monitored.fired}} to fire",
        )

    def expect_cleared(*names: str) -> None:
        wanted = {f"DelayQ{name}" for name in names}
        firing = 'ALERTS{alertstate="firing"}'
        wait_until(
            lambda: (
                wanted <= {*monitored.resolved}
                and not wanted
                & {each["metric"]["alertname"] for each in monitored.ask("query", query=firing)}
            ),
            TIMEOUT,
            lambda: f"{wanted - {*monitored.resolved}} to clear",
        )

    # When no worker consumes a queue, a task fails, Redis is almost full, and a clock is wrong.
    send("shop.remind", queue="mail", countdown=0.1)
    limit = Limit("mail", fair=True)
    monitored.delayq.store.task_limits.announce({"mail": limit.definition.text})
    monitored.app.task(name="shop.remind", limit=limit, shared=False)(remind)
    monitored.app.tasks["shop.remind"].apply_async((0.05,), queue="mail")
    send("shop.pay")
    used = monitored.client.info("memory")["used_memory"]
    monitored.client.config_set("maxmemory", int(used * 1.1))
    clock.write_text("+5s\n")
    named = ("NoConsumers", "OldestTooOld", "DeadLettersGrowing", "RedisMemory", "ClockSkew")
    expect(*named, "LaneStalled")
    monitored.client.config_set("maxmemory", 0)
    clock.write_text("+0s\n")
    others = monitored.worker("mail")
    expect_cleared(*named, "LaneStalled")

    # When all workers are killed.
    send("shop.remind", countdown=1)
    worker.kill()
    others.kill()
    expect("Overdue", "DispatchStalled", "PeriodicMissed")
    worker.restart()
    expect_cleared("Overdue", "DispatchStalled", "PeriodicMissed")

    # When Redis is killed.
    monitored.redis.kill()
    expect("Down")
    monitored.redis.restart()
    expect_cleared("Down")

    # Then each alert fired in time by Prometheus' own clock, counted from when its expression
    # became true and stayed true. On a busy machine a single scrape may fail.
    assert {*monitored.fired} == {*known}
    missed = max(monitored.values("prometheus_rule_group_iterations_missed_total"), default=0)
    for name, expression in known.items():
        true = monitored.since(expression, begin, FOR)
        fired = monitored.since(f'ALERTS{{alertname="{name}", alertstate="firing"}}', begin)
        assert true is not None, name
        assert fired is not None, name
        assert fired - true <= FOR + (2 + missed) * INTERVAL, name
