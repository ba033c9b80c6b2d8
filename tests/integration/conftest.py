"""Apps on an empty Redis, and ways to look at what they sent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import pools
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.model.envelope import Record
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import ManagedProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQScene
from tests.support.scene import Control, Leases, StartWorker
from tests.support.warm import ForkServer, ForkServers, spawning

if TYPE_CHECKING:
    from tests.apps.retry_tasks import RetryScene

MakeApp = Callable[..., Celery]
NewRabbitMQ = Callable[..., RabbitMQScene]
Through = Callable[..., tuple[Proxy, DelayQ]]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServers]:
    """Where workers of a pool are forked from; begins with the first one."""
    with ExitStack() as stack:
        yield cache(lambda pool: stack.enter_context(closing(ForkServer(pool))))


@pytest.fixture(autouse=True)
def _warm_workers(fork_server: ForkServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManagedProcess, "_spawn", spawning(fork_server))


def add(x: Any, y: Any) -> Any:
    """Stand for any task."""
    return x + y


@pytest.fixture
def make_app(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[MakeApp]:
    """Make apps with one task, ``tasks.add``; closed after the test."""
    apps: list[Celery] = []

    def make(*, extension: bool = True, broker: str = delayq_broker_url, **conf: Any) -> Celery:
        app = Celery("tests", broker=broker, backend=delayq_redis.url, set_as_current=False)
        app.conf.update(conf)
        if extension:
            DelayQ(app)
        app.task(name="tasks.add", shared=False)(add)
        apps.append(app)
        return app

    yield make
    for app in apps:
        DelayQ.of(app).close()
        app.close()
    pools.reset()


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


@pytest.fixture
def delayq(app: Celery) -> DelayQ:
    return DelayQ.of(app)


@pytest.fixture(name="add")
def add_of_app(app: Celery) -> Any:
    """The task of the app."""
    return app.tasks["tasks.add"]


@contextmanager
def batch(app: Celery, **options: Any) -> Iterator[Any]:
    """Yield a producer that sends in batches; the test is skipped where kombu has none."""
    with app.producer_pool.acquire(block=True) as producer:
        if not getattr(producer, "supports_batch_publish", False):
            pytest.skip("this kombu has no Producer.batch")
        with producer.batch(**options):
            yield producer


@contextmanager
def module_app(app: Celery, redis: RedisUnderTest, broker: str) -> Iterator[None]:
    """Have the app of a module use the Redis of this test, and forget its connections after it."""
    app.conf.update(broker_url=broker, result_backend=redis.url)
    yield
    DelayQ.of(app).close()
    app.close()
    app.conf.task_routes = None  # a broker of the contract may have set them
    app.__dict__.pop("amqp", None)
    app._pool = None
    app._local.backend = None
    pools.reset()


@pytest.fixture
def through(make_app: MakeApp, delayq_redis: RedisUnderTest) -> Iterator[Through]:
    """Make a proxy before the server, or that at a port, and the object of an app that uses it."""
    with ExitStack() as stack:

        def make(port: int = delayq_redis.port, **conf: Any) -> tuple[Proxy, DelayQ]:
            proxy = stack.enter_context(Proxy(port))
            app = make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0", **conf)
            return proxy, DelayQ.of(app)

        yield make


@pytest.fixture
def redis(delayq_redis: RedisUnderTest) -> Redis:
    """A client of the emptied server."""
    return delayq_redis.client


@pytest.fixture
def store(redis: Redis) -> Store:
    """A store without an app."""
    return Store(redis, Keys(), Layout())


@pytest.fixture
def stock(make_app: MakeApp, delayq_redis: RedisUnderTest) -> Celery:
    """An app on a stock broker, without the extension."""
    return make_app(extension=False, broker=delayq_redis.url)


# Modules with tasks are imported by fixtures: others would have their apps as the current one.
@pytest.fixture
def scene(
    request: pytest.FixtureRequest, app: Celery, delayq_redis: RedisUnderTest
) -> Iterator[RetryScene]:
    """Tasks that are tried again, and their workers; with the mark ``run_by("test")`` no workers:
    where the test waits, the clock moves.
    """
    from tests.apps.retry_tasks import RetryScene, tasks_of

    with _in_test(request, "scene", app, delayq_redis) as travelling:
        yield travelling or RetryScene(
            delayq_redis, tasks_of(app), request.getfixturevalue("delayq_worker")
        )


@pytest.fixture
def control(
    request: pytest.FixtureRequest, app: Celery, delayq_redis: RedisUnderTest
) -> Iterator[Control]:
    """Tasks that are revoked, paused, replaced and held back, and their workers, as for `scene`."""
    from tests.apps.control_tasks import tasks_of

    with _in_test(request, "control", app, delayq_redis) as travelling:
        yield travelling or Control(
            delayq_redis, tasks_of(app), request.getfixturevalue("delayq_worker")
        )


@contextmanager
def _in_test(
    request: pytest.FixtureRequest, kind: str, app: Celery, redis: RedisUnderTest
) -> Iterator[Any]:
    """Yield the scene of a test that runs the tasks itself, else None."""
    mark = request.node.get_closest_marker("run_by")
    if mark is None or mark.args != ("test",):
        yield None
        return
    from celery_delayq.testing.travel.traveller import TimeTravel
    from tests.support.travelling import travelling_scene

    with TimeTravel(app, redis.server) as travel:
        yield travelling_scene(kind, app, redis, travel)


@pytest.fixture
def leases(app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> Leases:
    """Workers that write down what they hold."""
    return Leases(delayq_redis, app, delayq_worker)


@pytest.fixture
def shop(tmp_path: Path, delayq_broker_url: str) -> list[str]:
    """The beginning of a command line on an app module."""
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\nfrom celery_delayq import DelayQ\n"
        f"app = Celery('shop', broker={delayq_broker_url!r})\nDelayQ(app)\n"
    )
    return [sys.executable, "-m", "celery", "--workdir", str(tmp_path), "-A", "shop", "delayq"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


def query(url: str, statement: str) -> list[Any]:
    """Run a statement as any other client of the database would."""
    from sqlalchemy import create_engine

    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        rows = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return rows


def stored(redis: Redis, queue: str = "celery") -> list[dict[str, Any]]:
    """Return the messages in the schedule of a queue, by when they are due."""
    ids = redis.zrange(f"{{{queue}}}:due", 0, -1)
    records = redis.hmget(f"{{{queue}}}:entries", ids) if ids else []
    return [json.loads(Record.unpack(record).message) for record in records]


def ready(redis: Redis, key: str = "celery") -> list[dict[str, Any]]:
    """Return the messages of a ready list, the next to be consumed first."""
    return [json.loads(item) for item in reversed(redis.lrange(key, 0, -1))]


@pytest.fixture
def new_rabbitmq(delayq_rabbitmq: str) -> Iterator[NewRabbitMQ]:
    """Make an app on an empty virtual host, with settings of ours by name."""
    with ExitStack() as stack:

        def make(url: str = delayq_rabbitmq, **settings: Any) -> RabbitMQScene:
            return stack.enter_context(RabbitMQScene(url, settings))

        yield make
