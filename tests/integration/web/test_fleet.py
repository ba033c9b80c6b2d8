"""The page "Fleet": the tasks that processes have."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.web.pages import fleet
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site
from tests.integration.web.conftest import Scene
from tests.integration.web.test_without_scripts import Reader
from tests.integration.web.test_without_scripts import reader as reader

ME, OTHER = "host.1.me", "host.2.other"


def lease(delayq: DelayQ, queue: str, worker_id: str) -> None:
    delayq.store.leases.acquire(queue, worker_id, 30.0, "1", 10, has_limits=True)


def test_the_tasks_of_processes_are_shown(
    app: Celery, delayq: DelayQ, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scene.ready
    lease(delayq, "celery", ME)
    for number in range(3):
        app.send_task("shop.import", (number,), {"file": "a.csv"}, queue="slow")
    delayq.store.client.rpush("slow", b"no JSON", b"[1]", b'{"headers": [], "body": 1}')
    lease(delayq, "slow", OTHER)

    with closing(Site(app)) as site:
        view = fleet.read(site, Query(""))
        assert (view.more_tasks, view.no_tasks) == (0, 3)
        shown = {(each.worker_id, each.queue, each.task, each.texts.args) for each in view.tasks}
        imports = {(OTHER, "slow", "shop.import", f"({number},)") for number in range(3)}
        assert shown == {(ME, "celery", "shop.mail", "('eve',)"), *imports}
        assert {each.texts.kwargs for each in view.tasks} == {"{}", "{'file': 'a.csv'}"}

        monkeypatch.setattr(fleet, "MAX_TASKS", 2)
        cut = fleet.read(site, Query(""))
        leased = sum(each.messages for each in cut.processes)
        assert [each.worker_id for each in cut.tasks] == [OTHER, ME]
        assert 2 + cut.more_tasks + cut.no_tasks == leased

    def hide(task: Any) -> Any:
        task.args = "***"
        return task

    with closing(Site(app, hide)) as hiding:
        assert {each.texts.args for each in fleet.read(hiding, Query("")).tasks} == {"***"}


def test_messages_that_are_no_tasks_are_counted(
    delayq: DelayQ, scene: Scene, reader: Reader
) -> None:
    delayq.store.client.rpush("slow", b"no JSON")
    lease(delayq, "slow", OTHER)

    reader.opens("/delayed/fleet")
    assert "1 message is no task." in reader.page.text
    assert "not shown" not in reader.page.text
