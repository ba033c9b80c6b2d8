"""Scrapes while Redis is away, hangs or refuses."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp, Through
from tests.integration.metrics.conftest import Export, Values, values_of
from tests.support import TIMEOUT
from tests.support.proxy import Fault

# The package has the command under this name.
metrics_command = import_module("celery_delayq.cli.commands.services.metrics")

#: What an exporter knows without the broker.
OWN = {
    "delayq_up",
    "delayq_build_info",
    "delayq_scrape_duration_seconds",
    "delayq_last_success_timestamp_seconds",
}

LAST = ("delayq_last_success_timestamp_seconds",)


def up(found: Values) -> float:
    return found["delayq_up",]


@pytest.mark.full
def test_an_outage_hides_the_gauges_and_ends_by_itself(
    through: Through, export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, delayq = through()
    exported = export(delayq)
    before = exported.all()
    assert up(before) == 1

    with proxy.away():
        found = [exported.now() for _ in range(3)]

    after = exported.now()
    assert [up(each) for each in (*found, after)] == [0, 0, 0, 1]
    assert [{key[0] for key in each} for each in found] == [OWN] * 3
    assert {each[LAST] for each in found} == {before[LAST]}
    assert after[LAST] > before[LAST]
    assert after.keys() == before.keys()
    assert sum("delayq_up is 0: cannot reach" in text for text in caplog.messages) == 1
    assert sum("reconnected" in text for text in caplog.messages) == 1


def test_a_connection_cut_during_a_scrape_is_made_again(through: Through, export: Export) -> None:
    proxy, delayq = through()
    exported = export(delayq)
    exported.now()
    for call in ("HGETALL", "schedule/counts", "INFO"):
        rule = proxy.on(call, Fault.RESET)
        assert up(exported.now()) == 1
        assert rule.fired.is_set()
        proxy.forget_rules()


def test_a_broker_that_hangs_is_away_for_all_who_ask(
    through: Through, export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, delayq = through()
    exported = export(delayq)
    exported.now()

    with proxy.frozen(), ThreadPoolExecutor(8) as threads:
        found = [*threads.map(exported.text, [0.5] * 8)]

    assert [b"delayq_up 0\n" in each for each in found] == [True] * 8
    wait_until(lambda: up(exported.now()) == 1, TIMEOUT, "the exporter goes on")
    assert sum("has not answered for 0.5 s" in text for text in caplog.messages) == 1


def test_a_host_that_vanished_is_given_up(
    through: Through, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No end of the connection arrives, as after a power cut."""
    proxy, delayq = through()
    delayq.session.redis_timeout = 0.3
    exported = export(delayq)
    assert up(exported.now()) == 1

    with proxy.frozen():
        began = time.monotonic()
        found = values_of(exported.text(timeout=TIMEOUT))
        assert time.monotonic() - began < TIMEOUT

    assert up(found) == 0
    assert up(exported.now()) == 1


@pytest.mark.full
def test_an_exporter_may_start_before_redis(through: Through, export: Export) -> None:
    proxy, delayq = through()
    with proxy.away():
        exported = export(delayq)
        assert {key[0] for key in exported.now()} == OWN - {LAST[0]}
    assert up(exported.now()) == 1


def test_a_missing_right_is_named(
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    make_app: MakeApp,
    export: Export,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = delayq_redis_factory()
    with server.client() as admin:
        rules = ["~*", "&*", "+@all", "-hgetall", "-config"]
        admin.execute_command("ACL", "SETUSER", "exporter", "on", ">s3cret", *rules)
        url = f"delayq+redis://exporter:s3cret@127.0.0.1:{server.port}/0"
        exported = export(DelayQ.of(make_app(broker=url)))

        assert up(exported.now()) == 0
        assert "hgetall" in caplog.messages[-1]
        assert "s3cret" not in caplog.text

        admin.execute_command("ACL", "SETUSER", "exporter", "+hgetall", "-info", "-memory")
        found = exported.all()
        assert up(found) == 1
        assert not {key[0] for key in found if "memory" in key[0]}


@pytest.mark.full
def test_after_a_failover_to_an_old_replica_counters_have_a_new_epoch(
    delayq_redis_factory: Callable[..., EmbeddedRedis], through: Through, export: Export
) -> None:
    master, replica = delayq_redis_factory(), delayq_redis_factory()
    proxy, delayq = through(master.port)
    with replica.client() as client:
        delayq.app.send_task("t", countdown=60)
        client.replicaof("127.0.0.1", master.port)
        wait_until(lambda: client.exists("{celery}:totals"), TIMEOUT, "a copy")
        client.replicaof("NO", "ONE")
    delayq.app.send_task("t", countdown=60)
    exported, other = export(delayq), export(delayq)
    [(_, epoch, queue)] = before = exported.now("accepted_total")

    proxy.turn_to(replica.port)

    after = exported.now("accepted_total")
    [(_, new_epoch, _)] = after
    assert (queue, [*before.values()], [*after.values()]) == ("celery", [2], [1])
    assert new_epoch != epoch
    assert other.now("accepted_total") == after
