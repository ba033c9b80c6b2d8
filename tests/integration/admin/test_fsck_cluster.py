"""``fsck`` on a Redis Cluster: a pause, revoke or limit that only some hash tags have."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.admin.doctor import FAULT, work
from celery_delayq.admin.hash_tags import REVOKE_EXPIRY_SECONDS
from celery_delayq.errors import CommandRefused
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.task_limits import LimitStore
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine, Ran
from tests.support.cluster import QUEUES, TAGS, Cluster

pytestmark = pytest.mark.full

#: A queue of the first tag, and one of the last.
FIRST, LAST = QUEUES[TAGS[0]], QUEUES[TAGS[-1]]
#: The first tag that an interrupted call does not reach.
REACHED = 5
#: Seconds for which revokes are remembered.
EXPIRES = Settings().revoke_expires


@pytest.fixture
def app(make_app: MakeApp, delayq_cluster: str) -> Celery:
    return make_app(broker=delayq_cluster)


def interrupted(app: Celery, call: Callable[..., object], **names: object) -> None:
    """Pause, resume or revoke, and fail between two tags."""
    store = [*DelayQ.of(app).session.stores][REACHED]
    key, client = store.keys.control, store.client
    if there := client.exists(key):
        client.rename(key, f"{key}:kept")
    client.set(key, "no hash")
    with pytest.raises(CommandRefused):
        call(**names)
    client.delete(key)
    if there:
        client.rename(f"{key}:kept", key)


def states(app: Celery, **names: str) -> list[bool]:
    """Return whether each tag has a pause."""
    [(kind, name)] = names.items()
    found = [store.control.controls() for store in DelayQ.of(app).session.stores]
    return [name in (each.queues if kind == "queue" else each.tasks) for each in found]


def fsck(app: Celery, *options: str) -> Ran:
    return CommandLine(app)("fsck", *options)


def findings(app: Celery, *options: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = fsck(app, "--json", *options).json["findings"]
    return {each["kind"]: (each["queue"], each["found"], each["examples"]) for each in found}


def test_an_interrupted_pause_is_found_and_finished(app: Celery) -> None:
    delayq = DelayQ.of(app)
    delayq.pause(task="tasks.whole")
    interrupted(app, delayq.pause, task="tasks.add")
    assert states(app, task="tasks.add") == [True] * REACHED + [False] * (12 - REACHED)

    ran = fsck(app)

    assert ran.code == 1
    assert "paused in some hash tags only" in " ".join(ran.out.split())
    assert findings(app) == {"unfinished_pause": ("", 1, ["tasks.add"])}
    [told] = work.hash_tags(delayq.session.stores, EXPIRES)
    assert told.what.startswith("tasks.add: paused in some hash tags only")
    assert states(app, task="tasks.add").count(True) == REACHED
    assert fsck(app, "--repair").code == 0
    assert states(app, task="tasks.add") == states(app, task="tasks.whole") == [True] * 12
    assert findings(app) == {}


def test_an_interrupted_resume_is_found_and_finished(app: Celery) -> None:
    delayq = DelayQ.of(app)
    store = delayq.session.stores.of(LAST)
    delayq.pause(task="tasks.add")
    app.send_task("tasks.add", (1, 2), countdown=0.05, queue=LAST)
    wait_until(lambda: store.promote(LAST, Layout(), 10) and delayq.stats().paused == 1)
    interrupted(app, delayq.resume, task="tasks.add")

    assert findings(app) == {"unfinished_resume": ("", 1, ["tasks.add"])}
    assert fsck(app, "--repair").code == 0

    assert states(app, task="tasks.add") == [False] * 12
    assert findings(app) == {}
    assert store.promote(LAST, Layout(), 10).moved == 1


def test_an_interrupted_revoke_is_found_and_finished(app: Celery) -> None:
    stores = DelayQ.of(app).session.stores
    app.send_task("tasks.add", (1, 2), countdown=60, queue=FIRST)
    app.control.revoke("whole")
    interrupted(app, app.control.revoke, task_id="id")
    interrupted(app, app.control.revoke_by_stamped_headers, headers={"tenant": "a"})
    app.control.revoke("also whole")
    assert [len(store.control.revoked().ids) for store in stores] == [3] * 5 + [2] * 7
    examples = ["id", '{"tenant": "a"}']

    assert findings(app) == {"unfinished_revoke": ("", 2, examples)}
    [told] = work.hash_tags(stores, EXPIRES)
    assert told.what.startswith("id and 1 more: revoked in some hash tags only")
    assert findings(app, "--queue", FIRST) == {}
    assert fsck(app, "--repair").code == 0

    assert findings(app) == {}
    remembered = [store.control.revoked() for store in stores]
    assert [sorted(each.ids) for each in remembered] == [["also whole", "id", "whole"]] * 12
    assert [each.stamps for each in remembered] == [[{"tenant": "a"}]] * 12


@pytest.mark.parametrize(
    ("name", "options", "override"),
    [("set", {"concurrency": 3}, "0 1 3 0"), ("set", {"off": True}, "none"), ("unset", {}, "")],
)
def test_an_interrupted_change_of_a_limit_is_found_and_finished(
    name: str,
    options: dict[str, Any],
    override: str,
    app: Celery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delayq = DelayQ.of(app)
    stores = delayq.session.stores
    stores.of(FIRST).register(FIRST)
    # Only the shard whose queues the worker consumes has the limits of its code.
    stores.of(LAST).task_limits.announce({"the%20api": "0 1 8 0", "whole": "0 1 8 0"})
    for limit in ("the api", "whole"):
        delayq.limits.set(limit, concurrency=5)

    def overrides() -> list[str]:
        return [store.task_limits.stored("the%20api").override for store in stores]

    calls = count()

    def change(*args: Any) -> bool:
        if next(calls) == REACHED:
            raise KeyboardInterrupt
        return original(*args)

    original = LimitStore.change
    with monkeypatch.context() as patch:
        patch.setattr(LimitStore, "change", change)
        with pytest.raises(KeyboardInterrupt):
            getattr(delayq.limits, name)("the api", **options)

    assert overrides() == [override] * REACHED + ["0 1 5 0"] * (12 - REACHED)
    assert findings(app) == {"unfinished_limit": ("", 1, ["the api"])}
    [told] = work.hash_tags(stores, EXPIRES)
    assert told.what.endswith(": limit that people have changed in some hash tags only")
    assert findings(app, "--queue", FIRST) == {}
    assert fsck(app, "--repair").code == 0

    assert findings(app) == {}
    assert overrides() == [override] * 12
    assert stores.of(LAST).task_limits.stored("whole").override == "0 1 5 0"


def test_a_revoke_that_is_about_to_be_forgotten_may_be_in_some_tags_only(app: Celery) -> None:
    """Each tag forgets by its own clock, when it stores the next one."""
    first, *others = DelayQ.of(app).session.stores
    app.control.revoke("id")
    for store in others:
        store.client.zrem(store.keys.revoked, "iid")
    aside = work.hash_tags(DelayQ.of(app).session.stores, EXPIRES)
    assert [problem.level for problem in aside] == [FAULT]

    first.client.zincrby(first.keys.revoked, -1000 * (EXPIRES - REVOKE_EXPIRY_SECONDS + 1), "iid")

    assert findings(app) == {}


def test_the_pause_of_a_queue_is_compared_with_that_queue(app: Celery) -> None:
    delayq = DelayQ.of(app)
    for queue in (FIRST, LAST):
        app.send_task("tasks.add", (1, 2), countdown=60, queue=queue)
    interrupted(app, delayq.pause, queue=LAST)

    assert findings(app, "--queue", FIRST) == {}
    assert findings(app, "--queue", LAST, "--repair") == {"unfinished_pause": (LAST, 1, [LAST])}
    assert states(app, queue=LAST) == [True] * 12


def test_a_queue_is_checked_while_another_shard_is_away(
    app: Celery, cluster_server: Cluster
) -> None:
    app.send_task("tasks.add", queue=LAST, countdown=60)

    with cluster_server.without(TAGS[REACHED]):
        ran = fsck(app, "--json", "--queue", LAST)

    assert ran.code == 0, ran.err
    [note] = ran.json["notes"]
    assert note.startswith("the pauses, revokes and limits of all hash tags were not compared: ")
