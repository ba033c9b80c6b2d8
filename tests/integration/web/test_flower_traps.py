"""What a Flower may lack or hide: the tab, arguments, Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.web.pages import PAGES
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene, paths_of
from tests.support.flower import OLDEST, page_paths, running_flower

RELEASES = ["", pytest.param(OLDEST, marks=pytest.mark.full)]

#: Hides arguments and errors, and fails for one task.
CONFIG = """
def format_task(task):
    if task.name == "shop.report":
        raise ValueError("no report")
    task.args = "(hidden)"
    task.kwargs = "(none)"
    task.exception = task.exception and "(no error)"
    task.traceback = task.traceback and "(no traceback)"
    return task
"""


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("app", "reason"),
    [("", "its app has no DelayQ"), ("late_flower:app", "was called after Flower had made")],
    ids=["no app", "late"],
)
def test_a_missing_tab_has_its_reason_in_the_log(
    app: str, reason: str, release: str, delayq_broker_url: str, tmp_path: Path
) -> None:
    with running_flower(delayq_broker_url, "", tmp_path, release=release, app=app) as (
        site,
        process,
    ):
        process.wait_log(f"Flower has no tab for delayed tasks: .*{reason}")
        assert site.get("/delayed").status == 404
        assert "Delayed" not in site.get("/workers").text
        assert site.get("/task/unknown").status == 404


def test_what_flower_hides_is_nowhere_on_our_pages(
    release: str,
    scene: Scene,
    delayq_broker_url: str,
    delayq_redis: RedisUnderTest,
    tmp_path: Path,
) -> None:
    config = tmp_path / "flowerconfig.py"
    config.write_text(CONFIG)
    with running_flower(
        delayq_broker_url, delayq_redis.url, tmp_path, [f"--conf={config}"], release=release
    ) as (site, process):
        for path in (*paths_of(scene).values(), "/scheduled?argument=17"):
            answer = site.get(f"/delayed{path}")
            assert answer.status == 200, path
            for secret in ("&#x27;ada&#x27;", "&#39;ada&#39;", "declined", "billing.py"):
                assert secret not in answer.text, (path, secret)
        assert "(hidden)" in site.get("/delayed/scheduled").text
        assert "(format_task failed)" in site.get("/delayed/scheduled").text
        assert scene.waiting not in site.get("/delayed/scheduled?argument=ada").text
        process.wait_log("format_task failed for task")


def test_a_redis_that_is_away_is_named_and_flower_goes_on(
    release: str,
    make_app: MakeApp,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    tmp_path: Path,
) -> None:
    server = delayq_redis_factory()
    broker = server.url_for("delayq+redis")
    make_app(broker=broker).send_task("shop.mail", task_id="one", countdown=3600)
    with running_flower(broker, "", tmp_path, release=release) as (site, _):
        assert site.get("/delayed").status == 200
        server.stop()
        paths = page_paths(task=["one"], entry=["one"], limit=["one"])
        del paths["health"]  # says that Redis is away
        for path in paths.values():
            answer = site.get(f"/delayed{path}")
            assert answer.status == 503, path
            assert "cannot reach" in answer.text, path
        assert site.get("/workers").status == 200
        assert site.get("/task/one").status == 404
        server.start()
        assert site.get("/delayed").status == 200


def test_on_rabbitmq_the_tab_shows_what_there_is(
    release: str, make_app: MakeApp, delayq_rabbitmq: str, tmp_path: Path
) -> None:
    app = make_app(broker=delayq_rabbitmq)
    app.send_task("shop.mail", countdown=3600)
    app.send_task("shop.mail")
    with running_flower(delayq_rabbitmq, "", tmp_path, release=release) as (site, process):
        overview = site.get("/delayed")
        assert overview.status == 200
        assert "RabbitMQ counts the scheduled tasks of all queues together" in overview.text
        assert "/delayed/dead" in overview.text
        assert "/delayed/scheduled" not in overview.text
        for name, path in page_paths(task=["one"], entry=["one"], limit=["one"]).items():
            answer = site.get(f"/delayed{path}")
            if PAGES[name.partition(" ")[0]].on_rabbitmq:
                assert answer.status == 200, path
            else:
                assert answer.status == 501, path
                assert "RabbitMQ can neither list" in answer.text, path
        assert site.get("/task/one").status == 404
        assert "Traceback" not in process.log


def test_on_a_redis_cluster_all_pages_have_all_shards(
    release: str, make_app: MakeApp, delayq_cluster: str, tmp_path: Path
) -> None:
    app = make_app(broker=delayq_cluster)
    queues = [f"queue-{number}" for number in range(6)]
    for queue in queues:
        app.send_task("shop.mail", task_id=f"in {queue}", queue=queue, countdown=3600)
    with running_flower(delayq_cluster, "", tmp_path, release=release) as (site, process):
        for path in ("", "/scheduled", "/broker"):
            answer = site.get(f"/delayed{path}" if path != "/broker" else path)
            assert answer.status == 200, path
            assert all(queue in answer.text for queue in queues), path
        for path in page_paths(task=["in queue-1"]).values():
            assert site.get(f"/delayed{path}").status == 200, path
        assert "Traceback" not in process.log
