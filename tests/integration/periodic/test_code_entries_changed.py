"""Periodic entries in code that calls have changed, or that are wrong in the code."""

from __future__ import annotations

import logging

import pytest

from celery_delayq import DelayQ
from celery_delayq.periodic import code_version
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.periodic.conftest import MakeShop
from tests.integration.periodic.versions import (
    CHANGED,
    TASK,
    VERSIONS,
    deploy,
    entries,
    keep,
    silent,
)

WRONG = {**TASK, "shedule": 5}


def test_what_calls_changed_stays_until_its_own_code_changes(make_shop: MakeShop) -> None:
    names = "updated", "paused", "removed", "replaced"
    one = make_shop(other=TASK, **dict.fromkeys(names, TASK))
    deploy(one)
    periodic = DelayQ.of(one).periodic
    periodic.update("updated", args=["mine"], schedule=60)
    periodic.pause("paused")
    periodic.remove("removed")
    periodic.add("replaced", 5, "note", ["mine"], replace=True)
    before = entries(one)
    two = make_shop(other=CHANGED, new=TASK, **dict.fromkeys(names, TASK))

    for app in (two, one, two):
        deploy(app)

    after = entries(two)
    assert after.keys() == {"updated", "paused", "replaced", "other", "new"}
    assert after["other"].definition.args == (2,)
    for name in ("updated", "paused", "replaced"):
        assert after[name] == before[name]

    deploy(make_shop(other=CHANGED, new=TASK, **dict.fromkeys(names, CHANGED)))

    last = entries(one)
    assert last.pop("replaced") == before["replaced"]
    assert last.pop("new") == after["new"]
    assert {name: entry.definition.args for name, entry in last.items()} == dict.fromkeys(
        ("updated", "paused", "removed", "other"), (2,)
    )
    assert last["updated"].as_dict()["when"] == last["removed"].as_dict()["when"]
    assert {name for name, entry in last.items() if entry.status == "paused"} == {"paused"}


def test_what_calls_removed_comes_back_when_it_was_gone_from_the_code(
    make_shop: MakeShop, delayq_redis: RedisUnderTest
) -> None:
    one, two = make_shop(a=TASK, b=TASK), make_shop(b=TASK)
    first = deploy(one)
    DelayQ.of(one).periodic.remove("a")
    second = deploy(two)
    assert entries(one).keys() == {"b"}

    silent(delayq_redis, second)
    keep(first, one)

    assert entries(one).keys() == {"a", "b"}


def test_what_the_code_left_out_for_an_entry_of_a_call_comes_with_the_next_change(
    make_shop: MakeShop,
) -> None:
    one = make_shop(a=TASK)
    DelayQ.of(one).periodic.add("a", 5, "note")
    deploy(one)
    DelayQ.of(one).periodic.remove("a")

    deploy(make_shop(a=TASK, b=TASK))

    assert {name: each.definition.source for name, each in entries(one).items()} == {
        "a": "code shop",
        "b": "code shop",
    }


def test_what_is_noted_of_the_code_is_small(
    make_shop: MakeShop, delayq_redis: RedisUnderTest
) -> None:
    schedule = {f"app.tasks.number-{n:06}": TASK for n in range(1000)}
    deploy(make_shop(**schedule))

    noted = sum(map(len, delayq_redis.client.hvals(VERSIONS)))
    assert noted / len(schedule) < 50, "bytes for each entry"


def test_what_is_wrong_in_code_is_left_out(
    make_shop: MakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_shop(
        good=TASK,
        zero={**TASK, "schedule": 0},
        zone={**TASK, "timezone": "Nowhere"},
        arguments={**TASK, "args": [object()]},
        nothing={},
        unknown={**TASK, "shedule": 5},
        text="note",
        number=5,
        options={**TASK, "options": 5},
        pairs={**TASK, "options": ["ab"]},
        soon={**TASK, "schedule": "soon"},
        unscheduled={"task": "note"},
    )
    app.conf.beat_schedule |= {1: TASK, 2: {**TASK, "schedule": 0}}
    wrong = {str(name) for name in app.conf.beat_schedule} - {"good", "1"}
    deploy(app)

    assert entries(app).keys() == {"good", "1"}, "a name becomes a text"
    for name in wrong:
        assert f"Periodic entry {name!r} in code is left out" in caplog.text
    assert "unknown: shedule; valid are" in caplog.text


def test_what_has_become_wrong_in_code_stays_as_it_is(
    make_shop: MakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, code_version.__name__)
    names = "plain", "updated", "removed"
    right = dict.fromkeys(names, TASK)
    one = make_shop(**right)
    deploy(one)
    periodic = DelayQ.of(one).periodic
    periodic.update("updated", args=["mine"])
    periodic.remove("removed")
    before = entries(one)
    caplog.clear()

    deploy(make_shop(**dict.fromkeys(names, WRONG)))
    assert entries(one) == before
    assert not any(told.startswith("Periodic entries in code: ") for told in caplog.messages)

    deploy(make_shop(**right, other=TASK))  # put right
    assert entries(one).keys() == {"plain", "updated", "other"}
    assert entries(one)["updated"] == before["updated"]

    deploy(make_shop(**dict.fromkeys(names, WRONG), other=TASK))
    deploy(make_shop(other=TASK))  # taken out
    assert entries(one).keys() == {"other"}
