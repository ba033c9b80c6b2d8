"""revoke.lua: revocations are remembered for a time, for workers that start later."""

from __future__ import annotations

import pytest

from celery_delayq.store import control
from tests.lua.bench import Bench, Calls, repeating

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "control/revoke": (lambda s: s.control.revoke(5.0, ["id"]), 1),
}

DAY = 86_400.0


def forget(store: Bench, member: str, seconds: float) -> None:
    """Move a revocation into the past."""
    store.client.zincrby("delayq:revoked", -seconds * 1000, member)


def test_ids_and_stamps_are_sent_to_all(store: Bench) -> None:
    before = store.now_ms()

    assert store.control.revoke(DAY, ["a", "b ä"], {"customer": [7, "x"]}) == 3

    ids, stamps, _, last = store.control.revoked()
    assert (sorted(ids), stamps) == (["a", "b ä"], [{"customer": [7, "x"]}])
    assert before <= last <= store.now_ms()
    assert store.state().keys() == {"delayq:control", "delayq:revoked"}


def test_only_what_is_new_is_read_again(store: Bench) -> None:
    store.control.revoke(DAY, ["a"])
    forget(store, "ia", 10)
    _, _, _, last = store.control.revoked()
    store.control.revoke(DAY, ["b"])

    assert store.control.revoked(last + 1)[0] == ["b"]
    assert store.control.revoked(last + 10**9) == ([], [], [], last + 10**9)


@pytest.mark.parametrize("most", [1, 3, 4, 100])
@pytest.mark.parametrize("since", [0, 5])
def test_each_is_read_once_however_many_were_revoked_in_one_ms(
    store: Bench, monkeypatch: pytest.MonkeyPatch, most: int, since: int
) -> None:
    monkeypatch.setattr(control, "REVOKED_BATCH", most)
    scores = [5] * 4 + [6] + [7] * 6 + [9, 10]
    store.client.zadd("delayq:revoked", {f"i{n:02}": at for n, at in enumerate(scores)})

    ids, _, _, last = store.control.revoked(since)

    assert ids == [f"{n:02}" for n in range(len(scores))]
    assert last == 10


def test_consumers_get_the_revision(store: Bench) -> None:
    store.push(b"{}", b"{}")
    store.control.revoke(DAY, ["a"])
    assert store.acquire("1", 1).revision == 1
    store.control.revoke(DAY, ["a"])
    assert store.acquire("2", 1).revision == 2


def test_what_is_revoked_again_is_remembered_from_then(store: Bench) -> None:
    store.control.revoke(DAY, ["a"])
    forget(store, "ia", DAY - 1)

    assert store.control.revoke(DAY, ["a"]) == 1
    assert store.control.revoked(store.now_ms() - 5000)[0] == ["a"]


def test_a_repeat_remembers_nothing_more(store: Bench) -> None:
    assert repeating(store).control.revoke(DAY, ["a"], {"x": 1}) == 2


def test_what_is_old_is_forgotten(store: Bench) -> None:
    store.control.revoke(DAY, ["old", "new"], {"old": 1})
    forget(store, "iold", DAY)
    forget(store, 's{"old": 1}', DAY)

    assert store.control.revoke(DAY, ["newer"]) == 2
    assert store.control.revoked()[:2] == (["new", "newer"], [])


def test_one_call_forgets_a_thousand_at_most(store: Bench) -> None:
    store.client.zadd("delayq:revoked", {f"i{n}": n for n in range(2500)})

    assert store.control.revoke(DAY, ["new"]) == 1501
    assert store.control.revoke(DAY, ["new"]) == 501
    assert store.control.revoke(DAY, ["new"]) == 1


def test_even_a_full_server_remembers(store: Bench) -> None:
    store.control.revoke(DAY, ["a"])
    store.fill()

    assert store.control.revoke(DAY, ["b"]) == 2
    assert store.control.not_revoked(["a", "b"]) == []
