"""A site that closes in the middle of its work: no thread loses the connection that it uses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import pytest
from celery import Celery

from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.web import changes
from celery_delayq.web import site as sites
from celery_delayq.web.doctor_looks import Checks
from celery_delayq.web.query import Query
from celery_delayq.web.questions import ask, job_of
from celery_delayq.web.site import Site
from tests.integration.web.conftest import Scene
from tests.support import TIMEOUT
from tests.support.stopped import stopped


class Work(NamedTuple):
    """What a site does in a thread."""

    begin: Callable[[], None]
    has_ended: Callable[[], bool]


def look(site: Site) -> Work:
    """Have the doctor look."""
    return Work(
        partial(site.doctor.request, Checks.ALL),
        lambda: site.doctor.newest_of_all_checks is not None,
    )


def change(site: Site) -> Work:
    """Cancel all tasks."""
    form = {"action": ["cancel_all"], "task": ["shop.mail"], "confirmed": ["yes"]}
    question = ask(site, Query("", form))
    query = Query("", {**form, "version": [question.version]})
    job = job_of(question, "ops")
    make = changes.prepare(site, query, question)
    return Work(partial(site.jobs.begin, job, make), job.finished.is_set)


WORKS: Mapping[str, Callable[[Site], Work]] = {"the doctor": look, "a change": change}


@pytest.mark.parametrize("name", WORKS)
def test_work_comes_to_its_end_when_its_site_has_closed(
    scene: Scene,
    app: Celery,
    delayq_redis: RedisUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    monkeypatch.setattr(sites, "REDIS_TIMEOUT_SECONDS", TIMEOUT)
    monkeypatch.setattr(sites, "CLOSING_SECONDS", 0.1)
    site = Site(app)
    work = WORKS[name](site)

    with stopped(delayq_redis.server.pid):
        work.begin()
        site.close()
        assert not work.has_ended()

    wait_until(work.has_ended, TIMEOUT)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    site.delayq.close()
