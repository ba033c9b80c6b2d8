"""The proxy of the fault tests applies each fault to the call of its rule and to no other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.proxy import Fault, Proxy
from tests.support.resp import Frames, NotResp, arguments, frame_end


@pytest.fixture
def proxy(delayq_redis: RedisUnderTest) -> Iterator[Proxy]:
    with Proxy(delayq_redis.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Redis]:
    """A client that repeats no call by itself."""
    with Redis(port=proxy.port, retry=Retry(NoBackoff(), 0), socket_timeout=5) as client:
        client.ping()
        yield client


def incr(client: Redis) -> int:
    """Count; the client's own method sends another command."""
    return int(client.execute_command("INCR", "n"))


def test_a_dropped_request_is_not_executed(
    proxy: Proxy, client: Redis, delayq_redis: RedisUnderTest
) -> None:
    rule = proxy.on("INCR", Fault.DROP_REQUEST)

    with pytest.raises(ConnectionError):
        incr(client)

    assert rule.fired.is_set()
    assert not delayq_redis.client.exists("n")
    assert incr(client) == 1


@pytest.mark.parametrize("fault", [Fault.DROP_REPLY, Fault.RESET, Fault.STALL])
def test_a_dropped_reply_is_that_of_a_call_that_was_executed(
    proxy: Proxy, client: Redis, delayq_redis: RedisUnderTest, fault: Fault
) -> None:
    proxy.on("INCR", fault, seconds=0.1)

    with pytest.raises(ConnectionError):
        incr(client)

    assert delayq_redis.client.get("n") == b"1"
    assert incr(client) == 2


def test_a_reset_differs_from_a_close(proxy: Proxy) -> None:
    ends: list[object] = []
    for fault in (Fault.DROP_REPLY, Fault.RESET):
        proxy.on("PING", fault)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as raw:
            raw.sendall(b"*1\r\n$4\r\nPING\r\n")
            try:
                ends.append(raw.recv(10))
            except ConnectionResetError as exc:
                ends.append(type(exc))

    assert ends == [b"", ConnectionResetError]


def test_a_stalled_reply_stops_half_way(proxy: Proxy) -> None:
    proxy.on("PING", Fault.STALL, seconds=0.2)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as raw:
        start = time.monotonic()
        raw.sendall(b"*1\r\n$4\r\nPING\r\n")

        assert raw.recv(10) == b"+PO"
        assert raw.recv(10) == b""

    assert time.monotonic() - start >= 0.2


def test_a_delayed_reply_comes_whole(proxy: Proxy, client: Redis) -> None:
    proxy.on("INCR", Fault.DELAY, seconds=0.2)
    start = time.monotonic()

    assert incr(client) == 1
    assert time.monotonic() - start >= 0.2


def test_the_nth_call_after_the_rule_is_hit(proxy: Proxy, client: Redis) -> None:
    incr(client)
    proxy.on("INCR", Fault.DROP_REPLY, nth=3)

    assert [incr(client), incr(client)] == [2, 3]
    with pytest.raises(ConnectionError):
        incr(client)
    assert incr(client) == 5


def test_what_is_to_happen_then_happens_between_execution_and_reply(
    proxy: Proxy, client: Redis, delayq_redis: RedisUnderTest
) -> None:
    seen: list[object] = []
    proxy.on("INCR", Fault.DELAY, then=lambda: seen.append(delayq_redis.client.get("n")))
    proxy.on("DECR", Fault.DROP_REQUEST, then=lambda: seen.append(delayq_redis.client.get("n")))

    incr(client)
    with pytest.raises(ConnectionError):
        client.execute_command("DECR", "n")

    assert seen == [b"1", b"1"]


def test_a_script_is_known_by_its_name_and_counts_when_it_is_executed(
    proxy: Proxy, client: Redis, delayq_redis: RedisUnderTest
) -> None:
    store = Store(client, Keys(), Layout())
    rule = proxy.on("dispatch/next_queue", Fault.DROP_REPLY)
    delayq_redis.client.script_flush()

    with pytest.raises(ConnectionError):
        store.defer_queue("q", 1) and store.next_queue()

    # Once as EVALSHA, which the server did not know, and once as EVAL.
    assert proxy.traffic["dispatch/next_queue"] == proxy.traffic["dispatch/defer_queue"] == 2
    assert rule.fired.is_set()


def test_cut_connections_are_replaced_and_refused_ones_are_not(proxy: Proxy, client: Redis) -> None:
    for reset in (False, True):
        proxy.cut_all(reset=reset)
        wait_until(lambda: _pings(client))

    with proxy.away():
        assert not _pings(client)
        with pytest.raises(ConnectionError, match="refused"):
            client.ping()
    assert client.ping()


def _pings(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except ConnectionError:
        return False


def test_a_frozen_proxy_keeps_connections_open_and_passes_nothing_on(proxy: Proxy) -> None:
    with Redis(port=proxy.port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as hasty:
        hasty.ping()
        with proxy.frozen(), pytest.raises(TimeoutError):
            hasty.ping()
        assert hasty.ping()


def test_all_replies_may_be_late(proxy: Proxy, client: Redis) -> None:
    proxy.latency = 0.1
    start = time.monotonic()

    client.ping()

    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("protocol", [2, 3])
def test_much_of_all_kinds_passes(
    proxy: Proxy, delayq_redis: RedisUnderTest, protocol: int
) -> None:
    with Redis(port=proxy.port, protocol=protocol) as client:
        pipe = client.pipeline(transaction=True)
        for n in range(2000):
            pipe.hset("h", str(n), b"x" * n)
            pipe.zadd("z", {str(n): n})
        pipe.hgetall("h")
        assert len(pipe.execute()[-1]) == 2000
        assert client.zrange("z", 0, -1, withscores=True)[-1][1] == 1999
        with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe("c")
            pubsub.get_message(timeout=1)
            teller = threading.Thread(target=delayq_redis.client.publish, args=("c", "hello"))
            teller.start()
            message = wait_until(lambda: pubsub.get_message(timeout=1))
            teller.join()
        assert message["data"] == b"hello"


def test_frames_are_cut_wherever_the_stream_is() -> None:
    stream = (
        b"+OK\r\n:1\r\n$-1\r\n*-1\r\n*2\r\n$2\r\na\r\r\n*1\r\n,1.5\r\n"
        b"%1\r\n+a\r\n_\r\n|1\r\n+a\r\n#t\r\n(12\r\n>1\r\n=5\r\ntxt:a\r\n"
    )
    whole = list(Frames().feed(stream))
    frames = Frames()
    bytewise = [frame for byte in stream for frame in frames.feed(bytes([byte]))]

    assert len(whole) == 8
    assert bytewise == whole
    assert b"".join(whole) == stream
    assert list(arguments(b"*2\r\n$3\r\nGET\r\n$4\r\nk\r\nk\r\n")) == [b"GET", b"k\r\nk"]
    with pytest.raises(NotResp):
        frame_end(b"PING\r\n")
