"""announce_version.lua: the newest live code version is active."""

from __future__ import annotations

import pytest

from celery_delayq.store.periodic import WrittenEntries
from tests.lua.bench import Bench, Calls, repeating

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "periodic/announce_version": (
        lambda s: s.periodic.announce_version("code", "1", None, 60),
        [b"1", b"", b"5"],
    ),
}

KEY = "delayq:code_versions"
LONG = 100_000
DAY = 24 * 3600 * 1000


def active(
    store: Bench, version: str, since: int | None = None, *, source: str = "code", alive: int = LONG
) -> str:
    """Announce a version; return the active one."""
    return store.periodic.announce_version(source, version, since, alive).version


def be_silent(store: Bench, version: str, ms: int = 2 * LONG) -> None:
    """Move the last announcement of a version into the past."""
    field = f"code\0{version}"
    since, _, last = (store.client.hget(KEY, field) or b"").partition(b" ")
    store.client.hset(KEY, field, f"{int(since)} {int(last) - ms}")


def versions(store: Bench) -> set[bytes]:
    return {field.removeprefix(b"code\0") for field in store.client.hkeys(KEY)}


# -- the active version


@pytest.mark.parametrize(
    ("announced", "expected"),
    [
        ("one one", "one one"),
        ("two one two", "two one one"),
        ("one two one", "one two two"),
        # Rolled back: the old one is active when the new one is silent. Then rolled out again.
        ("one two -two one", "one two one"),
        ("one two -two one two", "one two one two"),
    ],
)
def test_the_version_that_came_last_counts_until_it_is_silent(
    store: Bench, announced: str, expected: str
) -> None:
    found = []
    for version in announced.split():
        if version[0] == "-":
            be_silent(store, version[1:])
        else:
            found.append(active(store, version))

    assert found == expected.split()


@pytest.mark.parametrize("away", [2 * LONG, DAY, 7 * DAY - LONG])
def test_an_old_version_that_was_silent_for_long_stays_an_old_one(away: int, store: Bench) -> None:
    """Its only worker crashes while another version is tried, or an old host is started again."""
    active(store, "one")
    be_silent(store, "one", away)
    active(store, "two")

    assert active(store, "one") == "two"
    assert active(store, "two") == "two"


def test_after_a_week_it_is_known_no_more_and_comes_last(store: Bench) -> None:
    active(store, "one")
    be_silent(store, "one", 7 * DAY + LONG)
    active(store, "two")
    assert versions(store) == {b"two"}

    assert active(store, "one") == "one"


def test_one_that_is_new_comes_last_also_where_the_clock_was_set_back(store: Bench) -> None:
    active(store, "one")
    ahead = store.now_ms() + DAY
    store.client.hset(KEY, "code\0one", f"{ahead} {store.now_ms()}")

    assert active(store, "two") == "two"
    assert active(store, "one") == "two"


def test_one_that_was_about_before_the_clock_was_set_back_is_so_until_it_is_silent(
    store: Bench,
) -> None:
    active(store, "one")
    active(store, "two")
    be_silent(store, "two", -DAY)
    assert active(store, "one") == "two"

    be_silent(store, "two", LONG)

    assert active(store, "one") == "one"


@pytest.mark.parametrize("away", [LONG * 2 // 3, 2 * LONG, DAY, -DAY])
def test_a_time_in_which_nobody_spoke_takes_nothing_from_the_new_one(
    away: int, store: Bench
) -> None:
    """Redis is away in a rollout, or its clock is set; several old workers announce first."""
    active(store, "one")
    active(store, "two")
    be_silent(store, "two", LONG // 3)
    be_silent(store, "one", away)
    be_silent(store, "two", away)

    for _ in range(3):
        assert active(store, "one") == "two"
    assert active(store, "two") == "two"


@pytest.mark.parametrize("pause", [LONG // 3 + 1, LONG // 2, 10 * LONG])
def test_rolling_back_after_all_had_gone_the_old_one_counts_in_the_end(
    pause: int, store: Bench
) -> None:
    """It has one worker, which announces as seldom as possible."""
    active(store, "one")
    active(store, "two")
    found = []
    for _ in range(4):
        be_silent(store, "one", pause)
        be_silent(store, "two", pause)
        found.append(active(store, "one"))

    assert found == ["two", "two", "one", "one"]


@pytest.mark.parametrize("back", [LONG, DAY])
def test_one_that_had_gone_before_the_clock_was_set_back_has_gone(back: int, store: Bench) -> None:
    active(store, "one")
    active(store, "two")
    be_silent(store, "two", LONG + 10_000)
    be_silent(store, "one", -back)
    be_silent(store, "two", -back)

    for _ in range(2):
        assert active(store, "one") == "one"


def test_a_process_remembers_since_when_its_version_is_known(store: Bench) -> None:
    """The order stays when Redis has lost all data."""
    now = store.now_ms()

    assert active(store, "two", now - 1000) == "two"
    assert active(store, "one", now - 5000) == "two"


def test_each_source_has_its_own(store: Bench) -> None:
    active(store, "one", source="a")

    assert active(store, "two", source="b") == "two"
    assert active(store, "one", source="a") == "one"


def test_the_reply_names_other_live_sources(store: Bench) -> None:
    gate = store.periodic
    active(store, "two", source="b")
    active(store, "one", source="c")
    active(store, "two", source="c")
    active(store, "gone")
    be_silent(store, "gone")

    assert gate.announce_version("a", "one", None, LONG).others == ("b", "c")
    assert gate.announce_version("b", "two", None, LONG).others == ("a", "c")


@pytest.mark.parametrize("garbage", ["", "x y", "9", f"{10**15} 9", f"{10**12} {10**15}"])
@pytest.mark.parametrize("version", ["one", "odd"])
def test_what_is_no_record_is_passed_over(version: str, garbage: str, store: Bench) -> None:
    store.client.hset(KEY, "code\0odd", garbage)

    assert active(store, version) == version
    assert versions(store) == {version.encode()}


# -- what is written


def test_the_stored_mark_and_hashes_are_returned(store: Bench) -> None:
    gate = store.periodic
    assert gate.announce_version("code", "one", None, LONG).mark == ""
    assert gate.written_entries("code") == WrittenEntries("", {})

    then = WrittenEntries("one", {"a": "1", "ü": "2"})
    assert gate.announce_version("code", "one", None, LONG, then=then).mark == "one"

    assert gate.announce_version("code", "two", None, LONG).mark == "one"
    assert gate.written_entries("code") == then
    assert gate.written_entries("other") == WrittenEntries("", {})


def test_nothing_is_noted_where_another_one_has_noted_something_since(store: Bench) -> None:
    gate = store.periodic
    gate.announce_version("code", "one", None, LONG, then=WrittenEntries("one", {"a": "1"}))
    before = store.state()[KEY]

    for read in ("", "two"):
        found = gate.announce_version(
            "code", "one", None, LONG, before=read, then=WrittenEntries("me", {})
        )
        assert found.mark == "one"

    after = store.state()[KEY]
    assert {**after, b"code\0one": b""} == {**before, b"code\0one": b""}


def test_a_repeated_call_does_the_same(store: Bench) -> None:
    gate = repeating(store).periodic

    first = gate.announce_version("code", "one", None, LONG, then=WrittenEntries("me", {"a": "1"}))
    again = gate.announce_version(
        "code", "one", None, LONG, before="me", then=WrittenEntries("one", {})
    )

    assert (first.version, first.mark) == ("one", "me")
    assert again == first._replace(mark="one")
    assert gate.written_entries("code") == WrittenEntries("one", {})


@pytest.mark.parametrize("garbage", ["", "{", "[]", "\xff"])
def test_definition_hashes_that_cannot_be_read_are_none(garbage: str, store: Bench) -> None:
    store.client.hset(KEY, "code\0\0", garbage.encode("latin-1"))

    assert store.periodic.written_entries("code") == WrittenEntries("", {})
