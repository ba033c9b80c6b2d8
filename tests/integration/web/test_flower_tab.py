"""The tab in a real Flower: its pages, and Flower's own pages that show what waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.web.conftest import Scene
from tests.support.flower import OLDEST, Site, running_flower

RELEASES = ["", pytest.param(OLDEST, marks=pytest.mark.full)]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["", pytest.param("tools", marks=pytest.mark.full)])
def flower(
    release: str,
    request: pytest.FixtureRequest,
    scene: Scene,
    delayq_broker_url: str,
    delayq_redis: RedisUnderTest,
    tmp_path: Path,
) -> Iterator[Site]:
    """A Flower of the scene, with and without a prefix."""
    with running_flower(
        delayq_broker_url, delayq_redis.url, tmp_path, release=release, prefix=request.param
    ) as (site, process):
        yield site
        assert "has no tab" not in process.log
        assert "Traceback" not in process.log


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a table by the first one."""
    found = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.DOTALL):
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)
        first, *others = [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in cells]
        found[first] = others
    return found


def test_the_tab_shows_what_waits_and_flower_leads_to_it(flower: Site, scene: Scene) -> None:
    for page in ("/workers", "/tasks", "/broker", "/delayed"):
        link = f'href="{flower.prefix}/delayed"'
        assert re.search(rf"<a[^>]*{link}[^>]*>Delayed</a>", flower.get(page).text), page

    overview = flower.get("/delayed")
    assert overview.status == 200
    queues = rows(overview.text)
    assert queues["celery"][:6] == ["4", "0", "1", "0", "0", "1"]
    assert queues["slow"][:6] == ["1", "0", "0", "0", "0", "0"]
    assert "<svg" in overview.text
    assert 'method="post"' not in overview.text
    assert "DelayQ(app, web_changes=…)" not in overview.text
    assert "Changes need a login" in overview.text
    assert "--basic_auth" in overview.text
    assert overview.headers["X-Frame-Options"] == "DENY"

    for step in ("minute", "hour", "day"):
        for by in ("queue", "task"):
            assert flower.get(f"/delayed?step={step}&by={by}").status == 200

    scheduled = flower.get("/delayed/scheduled")
    assert scheduled.status == 200
    assert scene.waiting in scheduled.text
    assert scene.ready not in scheduled.text
    assert (
        "shop.report" not in flower.get("/delayed/scheduled?task=shop.mail").text.split("<tbody")[1]
    )

    task = flower.get(f"/delayed/task/{scene.waiting}")
    assert task.status == 200
    for shown in ("shop.mail", "ada", "It is due at"):
        assert shown in task.text

    dead = flower.get("/delayed/dead")
    assert "ValueError" in dead.text
    assert "the card was declined" in flower.get(f"/delayed/task/{scene.dead}").text

    assert flower.get("/delayed/nothing").status == 404
    assert flower.get("/delayed/task/unknown").status == 404
    assert flower.get("/delayed/scheduled?due_from=never").status == 400
    assert flower.get("/delayed/scheduled?cursor=never").status == 400
    part = flower.get("/delayed/scheduled?fragment=1")
    assert part.headers["X-Delayed-Fragment"] == "scheduled"
    assert "<html" not in part.text


def test_flowers_own_pages_know_what_waits(flower: Site, scene: Scene) -> None:
    answer = flower.get(f"/task/{scene.waiting}")
    assert answer.status == 302
    assert answer.headers["Location"] == f"{flower.prefix}/delayed/task/{scene.waiting}"
    assert flower.get("/task/unknown").status == 404

    queues = rows(flower.get("/broker").text)
    assert queues["celery"][:3] == ["5", "0", "1"]
    assert queues["slow"][:3] == ["1", "0", "0"]


def test_arguments_are_found_by_a_part(flower: Site, scene: Scene) -> None:
    found = flower.get("/delayed/scheduled?argument=ADA").text
    assert scene.waiting in found
    assert scene.elsewhere not in found
    assert "Searched 5 of 5." in " ".join(found.split())
    found = flower.get(f"/delayed/scheduled?id={scene.elsewhere}").text
    assert scene.elsewhere in found
    assert scene.waiting not in found
