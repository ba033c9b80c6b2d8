"""Where each form of broker URL leads, what is refused, and what is shown of it. No I/O."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from inspect import signature
from ssl import CERT_REQUIRED
from typing import Any
from urllib.parse import urlsplit

import pytest
from amqp.transport import SSLTransport
from celery import Celery
from flower.utils import broker as flower_broker
from kombu import Connection

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.transport import Transport, url
from celery_delayq.transport.url import node_addresses, plain_connection

TRANSPORT = "celery_delayq.transport:Transport"
SECRET = "p%40ss%3A%2F%3Bw"  # p@ss:/;w


def leads_to(connection: Connection) -> dict[str, Any]:
    """Give what kombu's channel would read off the connection, without what is not set."""
    plain = plain_connection(connection)
    names = ("transport_cls", "hostname", "port", "userid", "password", "virtual_host")
    return {name: value for name in names if (value := getattr(plain, name)) is not None}


def by_itself(connection: Connection) -> Connection:
    return connection


def by_clone(connection: Connection) -> Connection:
    return connection.clone()


def by_pickle(connection: Connection) -> Connection:
    return pickle.loads(pickle.dumps(connection))


def by_failover_and_back(connection: Connection) -> Connection:
    url = f"{connection.uri_prefix}+{connection.hostname}"
    others = Connection([url, "delayq+redis://:other@elsewhere:1/9"])
    for _ in range(2):
        assert isinstance(others.transport, Transport)
        others.maybe_switch_next()
    return others


SAME = [by_itself, by_clone, by_pickle, by_failover_and_back]


@pytest.mark.parametrize("copied", SAME)
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("delayq+redis://host", {"hostname": "host"}),
        ("delayq+redis://:pass,word@host", {"hostname": "host", "password": "pass,word"}),
        ("delayq+redis://host:7000/5", {"hostname": "host", "port": 7000, "virtual_host": "5"}),
        ("delayq+redis://[::1]:7000/5", {"hostname": "::1", "port": 7000, "virtual_host": "5"}),
        (
            f"delayq+redis://us%40er:{SECRET}@host/1",
            {"hostname": "host", "userid": "us@er", "password": "p@ss:/;w", "virtual_host": "1"},
        ),
        (f"delayq+redis://:{SECRET}@host", {"hostname": "host", "password": "p@ss:/;w"}),
        ("delayq+rediss://host?ssl_cert_reqs=required", {"transport_cls": "rediss"}),
        (
            "delayq+sentinel://:master@host:26000/2",
            {"transport_cls": "sentinel", "port": 26000, "password": "master", "virtual_host": "2"},
        ),
    ],
)
def test_a_url_over_tcp_leads_where_it_says(
    url: str, expected: dict[str, Any], copied: Callable[[Connection], Connection]
) -> None:
    port = 26379 if "sentinel" in url else 6379
    defaults = {"transport_cls": "redis", "hostname": "host", "port": port, "virtual_host": "0"}

    found = leads_to(copied(Connection(url)))

    found.setdefault("port", port)
    found["virtual_host"] = found["virtual_host"].strip("/") or "0"
    assert found == {**defaults, **expected}


@pytest.mark.parametrize("copied", SAME)
@pytest.mark.parametrize(
    "url",
    [
        "redis+socket:///run/Redis%20one/redis.sock?virtual_host=2",
        f"redis+socket://us%40er:{SECRET}@/run/redis.sock?virtual_host=2",
        f"redis+socket://:{SECRET}@/run/redis.sock",
    ],
)
def test_a_url_of_a_socket_leads_where_it_says(
    url: str, copied: Callable[[Connection], Connection]
) -> None:
    plain = plain_connection(copied(Connection(f"delayq+{url}")))

    assert plain.as_uri(include_password=True) == Connection(url).as_uri(include_password=True)
    assert plain.hostname == url.removeprefix("redis+")


@pytest.mark.parametrize("copied", SAME[:3])
@pytest.mark.parametrize(
    "url",
    ["redis://host:7000/5", "rediss://host:7000/5?ssl_cert_reqs=none", "sentinel://host:7000"],
)
def test_a_plain_url_with_our_transport_leads_to_the_same(
    url: str, copied: Callable[[Connection], Connection]
) -> None:
    with_transport = copied(Connection(url, transport=TRANSPORT))

    assert isinstance(with_transport.transport, Transport)
    assert leads_to(with_transport) == leads_to(Connection(f"delayq+{url}"))


def test_the_options_of_tls_are_read_from_the_url() -> None:
    options = "ssl_cert_reqs=required&ssl_ca_certs=%2Fetc%2Fca.pem&ssl_check_hostname=false"
    plain = plain_connection(Connection(f"delayq+rediss://host?{options}"))

    assert plain.ssl == {
        "ssl_cert_reqs": CERT_REQUIRED,
        "ssl_ca_certs": "/etc/ca.pem",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize("option", [name for name in url._TCP_OPTIONS if name.startswith("ssl_")])
def test_a_url_of_rabbitmq_takes_the_options_that_py_amqp_knows(option: str) -> None:
    known = signature(SSLTransport._wrap_socket_sni).parameters
    connection = Connection(f"delayq+amqps://host//?{option}=required")

    if option.removeprefix("ssl_") in known:
        assert plain_connection(connection).ssl
    else:
        with pytest.raises(ConfigError, match=rf"option\(s\) {option} are not known"):
            plain_connection(connection)


def test_credentials_apart_from_the_url_are_used() -> None:
    app = Celery(broker="delayq+redis://host:7000/5", set_as_current=False)
    app.conf.update(broker_user="planner", broker_password="secret")

    assert leads_to(app.connection_for_write())["password"] == "secret"


# -- several URLs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("urls", "transport"),
    [
        ("delayq+redis://:one@a:1/4;delayq+redis://b;delayq+redis://:two@c/2", None),
        ("delayq+redis://:one@a:1/4;redis://b;redis://:two@c/2", None),
        ("redis://:one@a:1/4;redis://b;redis://:two@c/2", TRANSPORT),
        (["redis://:one@a:1/4", "redis://b", "redis://:two@c/2"], TRANSPORT),
    ],
)
def test_each_of_several_urls_stands_for_itself_however_often_it_comes_round(
    urls: str, transport: str | None
) -> None:
    connection = Connection(urls, transport=transport)
    shown = []
    for _ in range(7):
        assert isinstance(connection.transport, Transport)
        shown.append(connection.clone().as_uri(include_password=True))
        connection.maybe_switch_next()

    a, b, c = "redis://:one@a:1/4", "redis://b:6379/0", "redis://:two@c:6379/2"
    assert shown == [a, b, c, a, b, c, a]


def test_a_socket_may_stand_beside_servers() -> None:
    socket = "redis+socket://:two@/run/Redis%20one/redis.sock?virtual_host=2"
    connection = Connection(f"delayq+redis://:one@a:1/4;delayq+{socket};delayq+redis://b/5")

    shown = []
    for _ in range(4):
        shown.append(connection.clone().as_uri(include_password=True))
        connection.maybe_switch_next()

    assert shown == ["redis://:one@a:1/4", socket, "redis://b:6379/5", "redis://:one@a:1/4"]


def test_further_sentinels_need_not_repeat_what_leads_to_the_master() -> None:
    connection = Connection("delayq+sentinel://planner:master@a:1/3;delayq+sentinel://b:2")

    shown, asked = [], []
    for _ in range(3):
        shown.append(connection.as_uri(include_password=True))
        asked.append([urlsplit(url).port for url in connection.transport.plain.alt])
        connection.maybe_switch_next()

    assert shown == [
        "sentinel://planner:master@a:1/3",
        "sentinel://planner:master@b:2/3",
        "sentinel://planner:master@a:1/3",
    ]
    assert asked == [[1, 2]] * 3


# -- what is shown -----------------------------------------------------------------------------

SHOWN = [
    (f"delayq+redis://planner:{SECRET}@host:7000/5", "delayq+redis://planner:**@host:7000/5"),
    (f"delayq+rediss://:{SECRET}@host/5?ssl_cert_reqs=required", "delayq+rediss://:**@host:6379/5"),
    (
        f"delayq+redis+socket://:{SECRET}@/run/redis.sock",
        "delayq+redis+socket://:**@/run/redis.sock",
    ),
    (
        f"delayq+sentinel://:{SECRET}@a:26000/5;delayq+sentinel://:{SECRET}@b:26000/5",
        "delayq+sentinel://:**@a:26000/5",
    ),
    (
        f"delayq+redis://:{SECRET}@a:7000/5;delayq+redis://:{SECRET}@b:7000/5",
        "delayq+redis://:**@a:7000/5",
    ),
]


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_people_see_the_scheme_of_ours_and_no_password(url: str, shown: str) -> None:
    connection = Connection(url)

    app = Celery("shop", broker=url, set_as_current=False)

    assert connection.as_uri() == shown
    assert shown in repr(connection)
    connection.maybe_switch_next()
    texts = [connection.as_uri(), repr(connection), repr(connection.transport)]
    texts += [app.bugreport(), app.conf.humanize(), str(app.conf.table())]
    for text in (*texts, repr(DelayQ(app)), repr(app)):
        assert "p@ss" not in text
        assert "p%40ss" not in text


def test_flower_finds_server_database_and_credentials() -> None:
    url = f"delayq+redis://planner:{SECRET}@host:7000/5"

    found = flower_broker.Broker(Connection(url).as_uri(include_password=True))

    assert isinstance(found, flower_broker.Redis)
    assert (found.host, found.port, found.vhost) == ("host", 7000, 5)
    assert (found.username, found.password) == ("planner", "p@ss:/;w")


@pytest.mark.parametrize(
    ("url", "options", "kind"),
    [
        ("delayq+rediss://host?ssl_cert_reqs=none", {"broker_use_ssl": True}, "RedisSsl"),
        ("delayq+redis+socket:///run/redis.sock?virtual_host=2", {}, "RedisSocket"),
        (
            "delayq+sentinel://host:26000",
            {"broker_options": {"master_name": "main"}},
            "RedisSentinel",
        ),
    ],
)
def test_flower_knows_every_kind_of_url(url: str, options: dict[str, Any], kind: str) -> None:
    found = flower_broker.Broker(Connection(url).as_uri(include_password=True), **options)

    assert type(found).__name__ == kind


def test_the_nodes_of_a_cluster_share_what_the_first_url_says() -> None:
    url = f"delayq+redisclusters://:{SECRET}@a:7000;delayq+redisclusters://b;delayq+redisclusters://a:7000"

    plain = plain_connection(Connection(url))

    assert (plain.hostname, plain.port, plain.password) == ("a", 7000, "p@ss:/;w")
    assert plain.ssl
    assert node_addresses(plain) == [("a", 7000), ("b", 6379)]


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("delayq+http://host", r"'http' is not known; valid are delayq\+redis://, .*sentinel://"),
        ("delayq+amqp://host?timeout=3", r"timeout are not known; valid are .*ssl_ca_certs"),
        ("delayq://host", r"'delayq' is not known; valid are delayq\+redis://"),
        ("delayq+redis://a;b", r"has no scheme; valid are delayq\+redis://"),
        ("delayq+redis://a;http://b", r"'http' is not known; valid are delayq\+redis://"),
        ("delayq+redis://host?timeout=3", r"timeout are not known; valid are .*ssl_ca_certs"),
        ("delayq+redis://host?timeout", r"timeout are not known; valid are .*ssl_ca_certs"),
        ("delayq+rediss://host?ssl_ca=x", r"ssl_ca are not known; valid are .*ssl_ca_certs"),
        ("delayq+rediss://h?ssl_cert_reqs=yes", "ssl_cert_reqs='yes' .* valid are required, opt"),
        ("delayq+redis+socket:///a.sock?db=2", "db are not known; valid are virtual_host"),
        ("delayq+redis+socket:///a.sock?virtual_host=two", "database 'two' .* is no number"),
        ("delayq+redis://host/flights", "database 'flights' .* is no number, such as 0"),
        ("delayq+redis://host/-1", "database '-1' .* is no number"),
        ("delayq+redis://host/1/2", "database '1/2' .* is no number"),
        ("delayq+redis://host:port/1", "port is no number from 0 to 65535"),
        ("delayq+redis://host:70000/1", "port is no number from 0 to 65535"),
        ("delayq+redis://a:1/1;delayq+redis://b:1/x", "database 'x' .* is no number"),
        ("delayq+rediscluster://a:7000/1", "database 1 .* a Redis Cluster has database 0 alone"),
        ("delayq+rediscluster://a;delayq+redis://b", "expected delayq.rediscluster:// for each"),
        ("delayq+rediscluster://a;delayq+redisclusters://b", "expected delayq.rediscluster://"),
        *(
            (url, r"comma between servers: expected ';'.*delayq\+redis.*://a;delayq\+redis.*://b")
            for url in (
                "delayq+rediscluster://127.0.0.1:7000,127.0.0.1:7001",
                "delayq+rediscluster://a,b",
                "delayq+rediscluster://c;delayq+rediscluster://:pass,word@a:7000,b:7001/0",
                "delayq+redis://a:6379,b:6379/1?ssl_cert_reqs=none",
            )
        ),
    ],
)
def test_a_url_that_cannot_be_right_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Connection(url).connect()


@pytest.mark.parametrize(
    "password",
    ["sec;ret", "sec/ret", "12/secret", "sec#ret", "12#secret", "sec?ret", "12?secret", "sec[ret"],
)
def test_a_password_that_was_not_encoded_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Connection(f"delayq+redis://:{password}@host:7000/1").connect()

    for piece in ("secret", "sec", "ret"):
        assert piece not in str(refused.value)
    assert refused.value.__cause__ is None
