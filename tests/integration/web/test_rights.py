"""Who may change tasks on the pages: a matrix of all changes, and of all wrong ways to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.web.actions import ACTIONS
from celery_delayq.web.query import mark_of
from tests.integration.web.conftest import Scene
from tests.support.flower import OLDEST, OPERATOR, PASSWORDS, READER, Answer, Site, running_flower
from tests.support.keyspace import snapshot

LOGIN = [f"--basic_auth={','.join(f'{user}:{word}' for user, word in PASSWORDS.items())}"]
RELEASES = ["", pytest.param(OLDEST, marks=pytest.mark.full)]

#: A form of each change: its path, and its fields.
FORMS: Mapping[str, Mapping[str, Any]] = {
    **{f"/delayed/change {name}": {"action": name} for name in ACTIONS},
    "/delayed/stop/x": {},
}

#: Each way to ask without the right to, as a user with or without one.
Ask = Callable[[Site, str, Mapping[str, Any]], Answer]


def with_own_token(site: Site, path: str, fields: Mapping[str, Any], **headers: str) -> Answer:
    """Send cookie and token that go together: anybody may make up both."""
    site.cookies["_xsrf"] = "0123456789abcdef0123456789abcdef"
    return site.post(path, {**fields, "_xsrf": site.cookies["_xsrf"]}, **headers)


def other_token(site: Site, path: str, fields: Mapping[str, Any]) -> Answer:
    token = site.as_user(OPERATOR).token()
    site.token()
    return site.post(path, {**fields, "_xsrf": token})


WRONG: Mapping[str, tuple[str | None, Ask]] = {
    "no login": (None, with_own_token),
    "no right": (READER, with_own_token),
    "no token": (OPERATOR, lambda site, path, fields: site.post(path, fields)),
    "a cookie and no token": (
        OPERATOR,
        lambda site, path, fields: (site.token(), site.post(path, fields))[1],
    ),
    "the token of another cookie": (OPERATOR, other_token),
    "a page of another site": (
        OPERATOR,
        lambda site, path, fields: with_own_token(site, path, fields, Origin="http://evil.example"),
    ),
    "a page without an origin": (
        OPERATOR,
        lambda site, path, fields: with_own_token(site, path, fields, Origin="null"),
    ),
    "a browser that says so": (
        OPERATOR,
        lambda site, path, fields: with_own_token(site, path, fields, Sec_Fetch_Site="cross-site"),
    ),
}


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def flower(
    release: str, scene: Scene, delayq_broker_url: str, delayq_redis: RedisUnderTest, tmp_path: Path
) -> Iterator[Site]:
    """A Flower with a login."""
    with running_flower(delayq_broker_url, delayq_redis.url, tmp_path, LOGIN, release=release) as (
        site,
        _,
    ):
        yield site


@pytest.fixture
def targets(scene: Scene) -> Mapping[str, Any]:
    """Fields that name tasks of all kinds."""
    waiting = scene.delayq.get(scene.waiting)
    dead = scene.delayq.dead_letter(scene.dead)
    assert waiting is not None
    assert dead is not None
    marks = [
        mark_of(int(waiting.due.timestamp() * 1000), waiting.id),
        mark_of(dead.dead_lettered.died_ms, dead.id),
    ]
    return {"mark": marks, "queue": "celery", "when": "5m", "confirmed": "yes"}


def stored(redis: Redis) -> Any:
    """Return what no page and no dispatcher changes."""
    return {key: value for key, value in snapshot(redis).items() if b"{celery}" in _bytes(key)}


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


def test_no_wrong_way_changes_anything(
    flower: Site, targets: Mapping[str, Any], redis: Redis
) -> None:
    before = stored(redis)
    found: dict[tuple[str, str], int] = {}
    for form, fields in FORMS.items():
        path = form.partition(" ")[0]
        for way, (user, ask) in WRONG.items():
            site = flower if user is None else flower.as_user(user)
            site.cookies.clear()
            found[form, way] = ask(site, path, {**targets, **fields}).status

    assert {each: status for each, status in found.items() if status not in (401, 403)} == {}
    assert {way for (_, way), status in found.items() if status == 401} <= {"no login"}
    for method in ("PUT", "DELETE", "PATCH"):
        assert flower.as_user(OPERATOR).ask(method, "/delayed/change", "", {}).status in (403, 405)
    assert stored(redis) == before


def test_without_a_login_nobody_changes_anything(
    release: str,
    scene: Scene,
    targets: Mapping[str, Any],
    delayq_broker_url: str,
    delayq_redis: RedisUnderTest,
    redis: Redis,
    tmp_path: Path,
) -> None:
    before = stored(redis)
    with running_flower(delayq_broker_url, delayq_redis.url, tmp_path, release=release) as (
        site,
        _,
    ):
        for form, fields in FORMS.items():
            for headers in ({}, site.as_user(OPERATOR).headers):
                answer = with_own_token(
                    site, form.partition(" ")[0], {**targets, **fields}, **headers
                )
                assert answer.status == 403, (form, headers)
    assert stored(redis) == before


def test_who_may_is_asked_first_and_logged(
    release: str,
    scene: Scene,
    delayq_broker_url: str,
    delayq_redis: RedisUnderTest,
    tmp_path: Path,
) -> None:
    waiting = scene.delayq.get(scene.waiting)
    assert waiting is not None
    mark = mark_of(int(waiting.due.timestamp() * 1000), waiting.id)
    with running_flower(delayq_broker_url, delayq_redis.url, tmp_path, LOGIN, release=release) as (
        anybody,
        process,
    ):
        site = anybody.as_user(OPERATOR)
        form = {"_xsrf": site.token("/delayed/scheduled"), "mark": mark}

        asked = site.post("/delayed/change", {**form, "action": "move"})
        assert asked.status == 200
        assert f"Move: task {scene.waiting}" in asked.text
        assert scene.delayq.get(scene.waiting) == waiting

        wrong = site.post("/delayed/change", {**form, "action": "move", "confirmed": "yes"})
        assert wrong.status == 400
        assert "give either the new time" in wrong.text

        moved = {**form, "action": "move", "by": "30m", "confirmed": "yes"}
        done = site.post("/delayed/change", moved)
        assert done.status == 303
        assert "Done: " in site.get(done.headers["Location"]).text
        later = scene.delayq.get(scene.waiting)
        assert later is not None
        assert (later.due - waiting.due).total_seconds() == 1800

        # The form shows the time before the move: somebody else has changed the task.
        again = site.post("/delayed/change", moved)
        shown = site.get(again.headers["Location"]).text
        assert "Nothing was changed." in shown
        assert "somebody else has changed it meanwhile" in shown
        for outcome in ("done", "changed"):
            process.wait_log(rf"User ops: Move: task {scene.waiting} \(by 30m\): 1 {outcome}")
