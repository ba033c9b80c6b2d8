"""Every form of broker URL on real servers: tasks go where it says, and real workers run them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import ConfigError, NotAllowed
from celery_delayq.testing import ProcessFailed
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport import Transport
from tests.integration.conftest import MakeApp
from tests.support.late_task import OUR_TRANSPORT, check_it_runs, send_late, start_worker
from tests.support.scene import StartWorker

Servers = Callable[..., EmbeddedRedis]
Two = tuple[EmbeddedRedis, EmbeddedRedis]


# -- one URL -----------------------------------------------------------------------------------


def test_user_password_and_database(
    delayq_redis_factory: Servers, make_app: MakeApp, delayq_worker: StartWorker
) -> None:
    server = delayq_redis_factory(password="of somebody else")
    with server.client() as admin, server.client(db=3) as client:
        rules = ("on", ">p@ss:/;w%rd", "~*", "&*", "+@all")
        admin.execute_command("ACL", "SETUSER", "us@er", *rules)
        broker = f"delayq+redis://us%40er:p%40ss%3A%2F%3Bw%25rd@127.0.0.1:{server.port}/3"

        result = send_late(make_app(broker=broker), client)
        worker = start_worker(delayq_worker, broker, {}, loglevel="DEBUG")
        check_it_runs(result, client)

        users = {c["user"] for c in admin.client_list() if c["db"] == "3"}
        assert users == {"us@er", "default"}  # default is the test itself
    for password in ("p@ss", "p%40ss"):
        assert password not in worker.log
    assert f"redis://us%40er:**@127.0.0.1:{server.port}/3" in worker.log


def test_a_unix_socket_with_password_and_database(
    delayq_redis_factory: Servers, make_app: MakeApp, delayq_worker: StartWorker
) -> None:
    server = delayq_redis_factory(password="p@ss/s3cret", unix_socket=True)
    broker = server.socket_url("delayq+redis+socket", database=2)
    with server.client(db=2) as client:
        result = send_late(make_app(broker=broker), client)
        worker = start_worker(delayq_worker, broker, {}, loglevel="DEBUG")
        check_it_runs(result, client)
        peers = [c for c in client.client_list() if c["db"] == "2"]
        by_tcp = {c["addr"] for c in peers if "U" not in c["flags"]}  # U: by a Unix socket
        assert by_tcp == {client.client_info()["addr"]}
    assert "s3cret" not in worker.log


def test_a_plain_url_with_our_transport(
    make_app: MakeApp, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    broker = delayq_redis.server.url_for("redis", 1)
    with delayq_redis.server.client(db=1) as client:
        result = send_late(make_app(broker=broker, **OUR_TRANSPORT), client)
        start_worker(delayq_worker, broker, OUR_TRANSPORT)
        check_it_runs(result, client)


def test_a_plain_url_of_a_socket_is_refused_as_kombu_ignores_the_transport_beside_it(
    make_app: MakeApp, delayq_redis_factory: Servers
) -> None:
    server = delayq_redis_factory(unix_socket=True)
    app = make_app(broker=server.socket_url(), **OUR_TRANSPORT)

    with pytest.raises(ConfigError, match=r"the broker is redis\+socket://.*begins with delayq\+"):
        DelayQ.of(app).count()


def test_a_worker_with_a_wrong_password_says_so_and_tries_again(
    delayq_redis_factory: Servers, delayq_worker: StartWorker
) -> None:
    server = delayq_redis_factory(password="right")
    broker = f"delayq+redis://:wr0ng@127.0.0.1:{server.port}/0"

    worker = start_worker(delayq_worker, broker, {}, wait_ready=False, loglevel="DEBUG")

    worker.wait_log(
        rf"(?i)Cannot connect to delayq\+redis://:\*\*@127.0.0.1:{server.port}.*password"
    )
    worker.wait_log("Trying again")
    assert "wr0ng" not in worker.log


@pytest.mark.parametrize("login", [":wr0ng@", "", "nobody:wr0ng@"])
@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.send_task("url.add", (2, 3)),
        lambda app: app.send_task("url.add", (2, 3), countdown=60),
        lambda app: DelayQ.of(app).count(),
        lambda app: DelayQ.of(app).cancel("id"),
    ],
    ids=["send", "send with a countdown", "count", "cancel"],
)
def test_a_refused_login_ends_a_call_at_once_and_names_the_url(
    make_app: MakeApp,
    delayq_redis_factory: Servers,
    login: str,
    call: Callable[[Celery], object],
) -> None:
    server = delayq_redis_factory(password="right")
    app = make_app(broker=f"delayq+redis://{login}127.0.0.1:{server.port}/0")
    with server.client() as client:
        before = client.info("stats")["total_connections_received"]

        with pytest.raises(NotAllowed) as caught:
            call(app)

        assert client.info("stats")["total_connections_received"] == before + 1
    shown = login.replace("wr0ng", "**") or ":**@"
    assert str(caught.value).startswith(f"delayq+redis://{shown}127.0.0.1:{server.port}/0: ")
    assert "check user and password" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [("flights", "database 'flights' .* is no number"), ("0?db=1", "option.* db are not known")],
)
def test_a_url_that_cannot_be_right_is_refused_by_the_call_and_by_the_worker(
    make_app: MakeApp,
    delayq_worker: StartWorker,
    delayq_redis: RedisUnderTest,
    path: str,
    message: str,
) -> None:
    broker = f"delayq+redis://127.0.0.1:{delayq_redis.port}/{path}"

    with pytest.raises(ConfigError, match=message):
        make_app(broker=broker, extension=False).send_task("url.add", (2, 3), countdown=60)

    with pytest.raises(ProcessFailed, match=rf"ended with code 1(.|\n)*cannot start: .*{message}"):
        start_worker(delayq_worker, broker, {})
    assert delayq_redis.client.keys() == []


# -- copies ------------------------------------------------------------------------------------


def test_a_pickled_app_is_an_app_with_the_same_broker(make_app: MakeApp, redis: Redis) -> None:
    with pickle.loads(pickle.dumps(make_app())) as app, DelayQ.of(app) as delayq:
        app.send_task("url.add", (2, 3), countdown=60)
        assert delayq.count() == 1
    assert redis.zcard("{celery}:due") == 1


# -- several URLs ------------------------------------------------------------------------------

#: The schemes of the URLs of two servers. Plain URLs need our transport beside them.
FORMS = [
    "delayq+redis;delayq+redis",
    "delayq+redis;redis",
    "redis;redis",
    "delayq+redis;delayq+redis+socket",
    "delayq+redis+socket;delayq+redis",
    "redis;redis+socket",
    "a list of delayq+redis;delayq+redis",
]


def broker_of(form: str, two: Two) -> dict[str, Any]:
    """Return the settings for databases 1 and 2 on two servers."""
    schemes = form.removeprefix("a list of ").split(";")
    urls = [
        server.socket_url(scheme, n) if "socket" in scheme else server.url_for(scheme, n)
        for n, (scheme, server) in enumerate(zip(schemes, two, strict=True), 1)
    ]
    ours = OUR_TRANSPORT if form.startswith("redis") else {}
    return {"broker": urls if form.startswith("a list") else ";".join(urls), **ours}


@pytest.fixture
def two(delayq_redis_factory: Servers) -> Two:
    """Two servers that keep what they have acknowledged, even when killed."""
    options = {"unix_socket": True, "appendfsync": "always"}
    return (
        delayq_redis_factory(password="p@ss one", **options),
        delayq_redis_factory(password="p@ss two", **options),
    )


@pytest.mark.parametrize("form", FORMS)
def test_publishing_follows_the_servers_there_and_back(
    make_app: MakeApp, two: Two, form: str
) -> None:
    app = make_app(**broker_of(form, two))

    def send() -> None:
        app.send_task("url.add", (2, 3), countdown=60)

    two[0].stop()
    send()
    send()
    with two[1].client(db=2) as second, DelayQ.of(app) as delayq:
        assert (second.zcard("{celery}:due"), second.llen("celery")) == (2, 0)
        assert delayq.count() == 2
    two[0].start()
    two[1].kill()
    send()
    with two[0].client(db=1) as first:
        assert (first.zcard("{celery}:due"), first.llen("celery")) == (1, 0)
    two[1].start()
    two[0].kill()
    send()
    with two[1].client(db=2) as second:
        assert (second.zcard("{celery}:due"), second.llen("celery")) == (3, 0)


@pytest.mark.parametrize(
    "form", ["delayq+redis;delayq+redis", "delayq+redis;delayq+redis+socket", "redis;redis"]
)
def test_a_worker_starts_at_the_second_server_and_goes_on_at_the_first(
    two: Two, make_app: MakeApp, delayq_worker: StartWorker, form: str
) -> None:
    settings = broker_of(form, two)
    two[0].stop()
    app = make_app(**settings)

    with two[1].client(db=2) as second:
        result = send_late(app, second)
        worker = start_worker(delayq_worker, settings.pop("broker"), settings, loglevel="DEBUG")
        check_it_runs(result, second)
    two[0].start()
    two[1].kill()

    with two[0].client(db=1) as first:
        check_it_runs(send_late(app, first), first)
    assert worker.running
    assert "p@ss" not in worker.log
    assert "p%40ss" not in worker.log


def test_all_servers_down_is_an_error_at_the_call(make_app: MakeApp, two: Two) -> None:
    app = make_app(**broker_of("delayq+redis;delayq+redis", two))
    for server in two:
        server.stop()

    with pytest.raises(OperationalError, match="refused") as refused:
        app.send_task("url.add", (2, 3), countdown=60)

    assert "p@ss" not in str(refused.value)
    assert isinstance(app.connection_for_write().transport, Transport)


def test_the_order_of_the_servers_may_be_shuffled(make_app: MakeApp, two: Two) -> None:
    app = make_app(broker_failover_strategy="shuffle", **broker_of("redis;redis", two))
    two[0].stop()

    # Each attempt draws anew, so that a few may meet the server that is down.
    often = {"max_retries": 40, "interval_start": 0, "interval_step": 0}
    app.send_task("url.add", (2, 3), countdown=60, retry_policy=often)

    with two[1].client(db=2) as second:
        assert (second.zcard("{celery}:due"), second.llen("celery")) == (1, 0)
