"""Garbage in each field of our hashes that a script reads: no call of a worker's loop fails.

The test finds the names of the fields in the scripts, so a new field fails until the table has it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_delayq.store
from celery_delayq.settings import Limits
from celery_delayq.store.keys import Layout
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import QUEUE, Bench, bench, labelled
from tests.support.lease_time import go_unwatched

SCRIPTS = Path(celery_delayq.store.__file__).parent / "lua"

#: Calls in which a script reads fields by their names.
READS = re.compile(r"'HM?GET', (?:KEYS\.)?\w+((?:, '[a-z_]{2,}')+)")

FIELDS = {
    "delayq:clock": (
        *("seen", "stood", "away_from", "away_to", "ready_looked", "cursor", "duty", "duty_at"),
        *("ticked", "set_back"),
    ),
    "delayq:control": ("revision",),
    "{q}:pace": ("tokens", "at", "below", "unpaused", "lanes"),
    "{q}:totals": ("pushed", "promoted", "ready", "empty"),
}

VALUES = [
    *(b"", b"\xff", b"a b", b"nan", b"-nan", b"inf", b"-inf", b"1e400", b"-1e300", b"1.5", b"0x7f"),
    *(b"9" * 400, b"9" * 5000, b"9" * 15, b"-" + b"9" * 14, b"9223372036854775807"),
]

#: Seconds by which Redis' clock seems to have jumped since the last look.
JUMPS = {"none": 0.0, "ahead": 60.0, "back": -60.0}


def test_each_field_that_a_script_reads_is_in_the_table() -> None:
    found = {
        name
        for path in SCRIPTS.rglob("*.lua")
        for names in READS.findall(path.read_text())
        for name in re.findall(r"[a-z_]+", names)
    }

    assert found == {name for names in FIELDS.values() for name in names}


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize(
    ("key", "field"), [(key, name) for key, names in FIELDS.items() for name in names]
)
def test_garbage_in_a_field_stops_nothing(
    delayq_redis: RedisUnderTest, key: str, field: str, jump: str
) -> None:
    """All calls of workers and dispatchers work, and consumers see a pause."""
    for number, value in enumerate(VALUES):
        delayq_redis.client.flushdb()
        store = bench(delayq_redis, promote_rate=1e5, max_ready=5)
        _fill(store)
        go_unwatched(store.client, JUMPS[jump])
        store.client.hset(key, field, value)
        layout = Layout(limits=Limits(promote_rate=1e5, max_ready=5))

        store.next_queue(200.0, "me", is_subscribed=True, ready_every=0.65)
        promoted = [store.promote(layout=layout, limit=1).moved for _ in range(3)]
        acquired = [store.acquire(str(request)) for request in range(2, 5)]
        store.next_queue(200.0, "me", is_subscribed=True, ready_every=0.65)
        store.periodic.claim_due(10, 1000)
        store.gauges.sizes(QUEUE, layout)
        before = store.control.controls().revision

        assert any(promoted), value
        assert sum(len(each.messages) for each in acquired), value
        assert {each.revision for each in acquired} == {before}, value
        assert store.pause(task=f"t{number}"), value
        store.control.add_revoked_members(60.0, [b"i1"])
        assert store.control.controls().revision != before, value


def _fill(store: Bench) -> None:
    """Make some entries due, one of them a late tick, and one message ready."""
    store.push(b'{"id": "stock"}')
    store.overdue("a", "b")
    store.control.pause([], queue=None, task="another")
    store.client.zadd("delayq:periodic_at", {"tick": 1})
    store.put(labelled("tick"))
    store.define_limit(fair=True)
    store.put(labelled("held", 0, lane="api:"))
