"""The page "Health" while the doctor looks, which takes minutes if very many tasks wait."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.web import site as sites
from celery_delayq.web.doctor_looks import Checks, DoctorLooks
from celery_delayq.web.pages import health
from tests.support import TIMEOUT
from tests.support.flower import Site, serving_pages
from tests.support.stopped import stopped


@pytest.fixture
def site(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(health, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(sites, "REDIS_TIMEOUT_SECONDS", TIMEOUT)
    with serving_pages(app) as site:
        yield site


@pytest.fixture
def doctor(delayq: DelayQ) -> Iterator[DoctorLooks]:
    doctor = DoctorLooks(delayq.session)
    yield doctor
    doctor.wait(TIMEOUT)


def test_the_page_is_shown_while_the_doctor_looks_and_has_what_it_finds(
    site: Site, delayq_redis: RedisUnderTest
) -> None:
    with stopped(delayq_redis.server.pid):
        opened, shown_again = (site.get(f"/delayed/health{each}") for each in ("", "?fragment=1"))

    for page in (opened, shown_again):
        assert (page.status, "All checks are running" in page.text) == (200, True)
    wait_until(lambda: "Checked " in site.get("/delayed/health?fragment=1").text, TIMEOUT)


def test_quick_checks_do_not_hide_what_all_checks_have_found(doctor: DoctorLooks) -> None:
    doctor.request(Checks.ALL)
    doctor.wait(TIMEOUT)
    look = doctor.newest
    assert look is not None
    doctor.request(Checks.QUICK)
    assert doctor.newest is look  # it is new

    doctor._newest[Checks.ALL] = old = look._replace(ended=look.ended - timedelta(hours=1))
    doctor.request(Checks.QUICK)
    doctor.wait(TIMEOUT)

    assert doctor.newest_of_all_checks is old
    newest = doctor.newest
    assert newest is not None
    assert newest.checks is Checks.QUICK


def test_all_checks_follow_quick_checks_that_run_when_they_are_requested(
    doctor: DoctorLooks, delayq_redis: RedisUnderTest
) -> None:
    with stopped(delayq_redis.server.pid):
        doctor.request(Checks.QUICK)
        doctor.request(Checks.ALL)
        doctor.request(Checks.ALL)
        assert doctor.makes_all_checks
    doctor.wait(TIMEOUT)

    look = doctor.newest_of_all_checks
    assert look is not None
    assert look.checks is Checks.ALL
    assert not doctor.makes_all_checks


def test_checks_that_fail_are_no_good_news(doctor: DoctorLooks, app: Celery) -> None:
    """The settings change while the server runs, so the doctor cannot begin."""
    app.conf.broker_transport_options = {"delayq": {"lease": "long"}}

    doctor.request(Checks.QUICK)
    doctor.wait(TIMEOUT)

    look = doctor.newest
    assert look is not None
    [finding] = look.diagnosis.wrong
    assert finding.what.startswith("the checks failed: delayq setting lease='long'")
