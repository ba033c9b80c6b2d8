"""The page "Periodic": entries of any kind, and the last runs of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone

import pytest
from celery import Celery
from celery.schedules import BaseSchedule

from celery_delayq import DelayQ
from celery_delayq.periodic.schedules import register
from celery_delayq.web.pages import periodic
from celery_delayq.web.pages.periodic import EntryDetails, PeriodicPage
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site
from tests.integration.conftest import MakeApp
from tests.support.runs import finished


class Failing(BaseSchedule):
    """A schedule of an app that fails once the clock of the test says so."""

    fails = False

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:  # noqa: ARG002
        if Failing.fails:
            raise RuntimeError("the calendar is away")
        return True, 60.0

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Failing, ()


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(broker_transport_options={"delayq": {"history": 1000}})


@pytest.fixture
def site(app: Celery) -> Iterator[Site]:
    with closing(Site(app)) as site:
        yield site


def page(site: Site, name: str = "") -> PeriodicPage:
    return periodic.read(site, Query(name))


def details(site: Site, name: str) -> EntryDetails:
    found = page(site, name).details
    assert found is not None
    return found


def note_runs(delayq: DelayQ, ids: Sequence[str]) -> None:
    """Add runs, each one second after the one before."""
    begun = delayq.store.now_ms() - 1000 * len(ids)
    runs = [finished(id, begun + 1000 * n, reason="declined") for n, id in enumerate(ids)]
    delayq.store.history.add("me", 1, 1000, runs)


NAMES = ("digest", "digest:daily", "ünï code", "1", "a:1")


def test_an_entry_has_its_own_runs_the_newest_first(delayq: DelayQ, site: Site) -> None:
    own: dict[str, list[str]] = {}
    ids: list[str] = []
    for number, name in enumerate(NAMES):
        delayq.periodic.add(name, 3600, "shop.mail")
        own[name] = [f"{name}:{1_700_000_000_000 + number + n}" for n in range(14)]
        own[name].append(f"{name}:{'0123456789abcdef'}")
        ids += own[name]
    note_runs(delayq, [*ids, "digest", "digest:x", "digest:1:2:x", "other"])

    for name in NAMES:
        shown = [run.id for run in details(site, name).runs]
        assert shown == own[name][::-1][: periodic.LAST_RUNS], name


def test_an_old_run_of_a_rare_entry_is_found_by_the_index(
    delayq: DelayQ, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "LOOKED_RUNS", 5)
    delayq.periodic.add("yearly", 365 * 86_400, "shop.mail")
    id = delayq.periodic.run_now("yearly")
    assert id is not None
    note_runs(delayq, [id, *(f"run-{n}" for n in range(20))])

    assert [run.id for run in details(site, "yearly").runs] == [id]


@pytest.mark.parametrize("looked_runs", [5, 10_000])
def test_the_list_tells_how_each_entry_ran_last(
    app: Celery,
    delayq: DelayQ,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    looked_runs: int,
) -> None:
    monkeypatch.setattr(periodic, "LOOKED_RUNS_OF_LIST", looked_runs)
    ids: dict[str, str] = {}
    for name in (*NAMES, "never"):
        delayq.periodic.add(name, 3600, "shop.mail")
        ids[name] = delayq.periodic.run_now(name) or ""
    delayq.periodic.add("new", 3600, "shop.mail")
    note_runs(delayq, [*(ids[name] for name in NAMES), *(f"run-{n}" for n in range(20))])

    last = {row.name: row.last_run and row.last_run.id for row in page(site).rows}
    assert last == {**ids, "never": None, "new": None}
    assert [row.last_run.id for row in page(site, "1").rows if row.last_run] == [ids["1"]]
    with closing(Site(app, lambda task: task)) as hiding:
        assert {row.last_run.reason for row in page(hiding).rows if row.last_run} == {""}


def test_a_page_reads_the_history_once(delayq: DelayQ, site: Site) -> None:
    delayq.periodic.add("digest", 3600, "shop.mail")
    note_runs(delayq, [delayq.periodic.run_now("digest") or ""])

    def reads(name: str) -> int:
        client = delayq.store.client
        client.config_resetstat()
        (row,) = page(site, name).rows
        assert row.last_run is not None
        return int(client.info("commandstats")["cmdstat_xrevrange"]["calls"])

    assert reads("digest") == reads("")


def test_without_a_history_there_are_none(make_app: MakeApp, delayq: DelayQ) -> None:
    delayq.periodic.add("digest", 3600, "shop.mail")
    with closing(Site(make_app())) as site:
        found = details(site, "digest")

    assert (found.runs, found.keeps_history) == ([], False)


def test_a_schedule_that_fails_hides_no_other_entry(
    delayq: DelayQ, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(Failing)
    delayq.periodic.add("calendar", Failing(), "shop.mail")
    delayq.periodic.add("digest", 3600, "shop.mail")
    monkeypatch.setattr(Failing, "fails", True)

    assert {row.name for row in page(site).rows} == {"calendar", "digest"}
    found = details(site, "calendar")
    assert (found.ticks, "the calendar is away" in found.problem) == ([], True)
    assert details(site, "digest").ticks[0] > datetime.now(timezone.utc)


def test_an_entry_that_this_process_cannot_read_has_a_page(delayq: DelayQ, site: Site) -> None:
    delayq.periodic.add("digest", 3600, "shop.mail")
    store = delayq.store
    store.client.hset(store.keys.periodic, "later", "2 abc\n{}")

    found = page(site, "later")

    assert found.entry is not None
    assert found.details is not None
    assert (found.entry.status, found.details.problem) == ("unreadable", found.entry.when)
