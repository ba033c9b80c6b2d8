"""deploy.lua: of several versions of the code, the one that came last counts."""

from __future__ import annotations

import pytest

from celery_delayq.periodic_store import PeriodicStore
from celery_delayq.store import Store
from tests.support.keyspace import snapshot

KEY = "delayq:deploys"
LONG = 100_000


def deploy(
    store: Store,
    version: str,
    since: int | None = None,
    *,
    source: str = "code",
    alive: int = LONG,
    written: bool | None = None,
) -> tuple[str, str]:
    """Return which version counts, and which was written."""
    found = PeriodicStore(store).deploy(source, version, since, alive, written=written)
    return found.counts, found.written


def have_ended(store: Store, version: str, source: str = "code") -> None:
    """Make it as if nobody had said for long that a version is about."""
    field = f"{source}\0{version}"
    since = (store.client.hget(KEY, field) or b"").split(b" ")[0]
    store.client.hset(KEY, field, since + b" 1")


def test_the_first_one_counts_and_is_to_be_written(store: Store) -> None:
    assert deploy(store, "one") == ("one", "")
    assert deploy(store, "one", written=True) == ("one", "one")
    assert deploy(store, "one") == ("one", "one")


def test_of_two_the_one_that_came_last_counts(store: Store) -> None:
    now = store.now_ms()
    deploy(store, "one", now - 5000, written=True)

    assert deploy(store, "two", now - 1000) == ("two", "one")
    assert deploy(store, "two", written=True) == ("two", "two")


def test_an_older_one_that_starts_again_changes_nothing(store: Store) -> None:
    now = store.now_ms()
    deploy(store, "one", now - 5000, written=True)
    deploy(store, "two", now - 1000, written=True)

    assert deploy(store, "one") == ("two", "two")
    assert deploy(store, "one", written=True) == ("two", "two")


def test_an_older_one_counts_again_when_the_newer_one_is_gone(store: Store) -> None:
    now = store.now_ms()
    deploy(store, "one", now - 5000, written=True)
    deploy(store, "two", now - 1000, written=True)
    have_ended(store, "two")

    assert deploy(store, "one") == ("one", "two")
    assert snapshot(store.client)[KEY].keys() == {b"code\0one", b"code\0"}


def test_one_that_was_away_altogether_comes_back_as_the_last(store: Store) -> None:
    now = store.now_ms()
    deploy(store, "one", now - 5000, written=True)
    have_ended(store, "one")
    deploy(store, "two", now - 1000, written=True)

    assert deploy(store, "one") == ("one", "two")


def test_a_process_remembers_since_when_its_version_is_about(store: Store) -> None:
    """When Redis was away for so long that it counts nobody as being about, order stays."""
    now = store.now_ms()

    assert deploy(store, "two", now - 1000) == ("two", "")
    assert deploy(store, "one", now - 5000) == ("two", "")


def test_each_source_has_its_own(store: Store) -> None:
    deploy(store, "one", source="a", written=True)

    assert deploy(store, "two", source="b") == ("two", "")
    assert deploy(store, "one", source="a") == ("one", "one")


@pytest.mark.parametrize("garbage", ["", "x y", "9"])
def test_what_is_no_record_is_passed_over(garbage: str, store: Store) -> None:
    store.client.hset(KEY, "code\0odd", garbage)

    assert deploy(store, "one") == ("one", "")


def test_what_may_have_been_overwritten_is_to_be_written_again(store: Store) -> None:
    now = store.now_ms()
    deploy(store, "one", now - 5000)
    deploy(store, "two", now - 1000, written=True)

    assert deploy(store, "one", now - 5000, written=False) == ("two", "")
    assert deploy(store, "two", now - 1000) == ("two", "")
    assert deploy(store, "two", now - 1000, written=True) == ("two", "two")
