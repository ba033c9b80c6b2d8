"""One script call: a server that has forgotten the script, a lost connection, a silent server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError
from redis.retry import Retry

from celery_delayq.errors import BrokerTimeout, BrokerUnavailable, CommandRefused
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.calls import Call, pack
from celery_delayq.store.scripting.runner import ScriptRunner
from celery_delayq.testing.fixtures import RedisUnderTest

CALL = Call("leases/filled_lists", ["list"], [])

#: redis-py's retries: none, one, and one unless the server is silent.
ONCE = Retry(NoBackoff(), 0)
TWICE = Retry(NoBackoff(), 1)
UNLESS_SILENT = Retry(NoBackoff(), 1, supported_errors=(ConnectionError,))

NewRunner = Callable[[Retry], ScriptRunner]


@pytest.fixture
def new_runner(delayq_redis: RedisUnderTest) -> Iterator[NewRunner]:
    runners: list[ScriptRunner] = []

    def new(retry: Retry) -> ScriptRunner:
        client = Redis(port=delayq_redis.port, retry=retry, socket_timeout=1.0)
        runners.append(ScriptRunner(client, Keys(), Layout()))
        return runners[-1]

    yield new
    for each in runners:
        each.client.connection_pool.disconnect()


def calls(server: RedisUnderTest) -> int:
    stats: Any = server.client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


@pytest.mark.parametrize("held", [False, True])
def test_a_script_that_the_server_has_forgotten_is_sent_again(
    new_runner: NewRunner, delayq_redis: RedisUnderTest, held: bool
) -> None:
    runner = new_runner(ONCE)
    if held:
        runner.keep_connection()
    for _ in range(2):
        delayq_redis.client.script_flush()
        before = calls(delayq_redis)
        assert runner.run(CALL) == []
        assert calls(delayq_redis) - before == 2

    before = calls(delayq_redis)
    assert runner.run(CALL) == []
    assert calls(delayq_redis) - before == 1


def test_a_refused_call_is_not_repeated_and_leaves_the_connection_in_step(
    new_runner: NewRunner, delayq_redis: RedisUnderTest
) -> None:
    runner = new_runner(TWICE)
    runner.run(CALL)
    delayq_redis.client.set("revoked", "of another type")
    id, before = runner.client.client_id(), calls(delayq_redis)

    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        runner.run(Call("control/revoke", ["control", "revoked"], [1000, "i1"]))

    assert calls(delayq_redis) - before == 2  # the first one without the source
    assert runner.client.client_id() == id


@pytest.mark.parametrize(
    ("retry", "held", "repeated"),
    [
        (ONCE, False, False),
        (ONCE, True, True),
        (TWICE, False, True),
        (UNLESS_SILENT, False, True),
    ],
)
def test_a_call_is_repeated_where_its_connection_was_lost_and_says_so(
    new_runner: NewRunner,
    delayq_redis: RedisUnderTest,
    retry: Retry,
    held: bool,
    repeated: bool,
) -> None:
    runner = new_runner(retry)
    wire = runner.keep_connection() if held else None
    runner.run(CALL)
    if wire is None:
        kill_while_it_is_sent(runner, delayq_redis)
    else:
        delayq_redis.client.client_kill_filter(_type="normal", skipme=True)

    if repeated:
        assert runner.run(CALL) == []
    else:
        with pytest.raises(BrokerUnavailable):
            runner.run(CALL)
        assert runner.run(CALL) == []


def kill_while_it_is_sent(runner: ScriptRunner, server: RedisUnderTest) -> None:
    """Close the first connection that the pool hands out, after redis-py has checked it."""
    taken = watch_connections(runner)
    get = runner.client.connection_pool.get_connection

    def get_closed(*names: Any) -> Any:
        connection = get(*names)
        if len(taken) == 1:
            connection.send_packed_command([pack([("CLIENT", "ID")])])
            server.client.client_kill_filter(_id=str(connection.read_response()))
        return connection

    runner.client.connection_pool.get_connection = get_closed


def watch_connections(runner: ScriptRunner) -> list[None]:
    """Return a list that grows when the runner takes a connection."""
    pool, taken = runner.client.connection_pool, list[None]()
    get = pool.get_connection

    def get_counted(*names: Any) -> Any:
        taken.append(None)
        return get(*names)

    pool.get_connection = get_counted
    return taken


@pytest.mark.parametrize(("retry", "asked"), [(ONCE, 1), (UNLESS_SILENT, 1), (TWICE, 2)])
def test_a_silent_server_is_asked_as_often_as_its_connection_says(
    new_runner: NewRunner, delayq_redis: RedisUnderTest, retry: Retry, asked: int
) -> None:
    runner = new_runner(retry)
    runner.run(CALL)
    taken = watch_connections(runner)
    delayq_redis.client.client_pause(60_000, all=False)  # all that may write
    try:
        with pytest.raises(BrokerTimeout):
            runner.run(CALL)
    finally:
        delayq_redis.client.client_unpause()

    assert len(taken) == asked
