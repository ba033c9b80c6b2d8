"""What a look at several queues tells."""

from __future__ import annotations

import pytest
from redis.exceptions import NoScriptError

from celery_delayq.store.scripting.calls import pack, pack_arg
from celery_delayq.store.scripting.scripts import load
from celery_delayq.transport.requests import FilledQueuesCall

SCRIPT = load("leases/filled_lists")


@pytest.fixture
def look() -> FilledQueuesCall:
    look = FilledQueuesCall()
    look.add("a", pack_arg("a-wake"))
    look.add("b", *map(pack_arg, ("b-0", "b-3")))
    return look


@pytest.mark.parametrize(
    ("reply", "queues"), [([], []), ([1], ["a"]), ([2, 3], ["b", "b"]), ([1, 3], ["a", "b"])]
)
def test_it_tells_the_queues_of_the_lists_that_are_there(
    look: FilledQueuesCall, reply: list[int], queues: list[str]
) -> None:
    assert look.found(reply) == queues


def test_where_redis_refuses_any_queue_may_have_something(look: FilledQueuesCall) -> None:
    assert look.found(NoScriptError("No matching script")) == ["a", "b", "b"]


def test_it_is_one_call_of_all_lists(look: FilledQueuesCall) -> None:
    assert look.packed() == pack([("EVAL", SCRIPT.source, 3, "a-wake", "b-0", "b-3")])


def test_without_lists_there_is_no_call() -> None:
    assert FilledQueuesCall().packed() == b""
