"""A dead letter with a large message has it in a field of its own: all scripts know both fields."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.model.dead_letter import DeadLettered
from celery_delayq.model.envelope import LARGE
from celery_delayq.store.dead_letters import Replay
from celery_delayq.store.repair import RepairStore
from celery_delayq.utils.message_json import encode
from tests.lua.bench import DEFAULT, QUEUE, Bench, labelled, repeating
from tests.lua.dead_letters import DETAILS
from tests.support.spelled import sent

NUL = b"\0"
MESSAGES = {
    "a message": b'{"body": "' + b"x" * LARGE + b'"}',
    "any bytes": b"\n" + bytes(range(256)) * (LARGE // 256),
    "just large": b"x" * LARGE,
}

each_message = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
each_details = pytest.mark.parametrize("details", [b"", DETAILS], ids=["alone", "with details"])


def fields(store: Bench) -> set[bytes]:
    return set(store.client.hkeys("{q}:dead"))


def one(store: Bench) -> DeadLettered:
    """Return the only dead letter, as it is read in each way."""
    [found] = store.dead_letters.all(QUEUE)
    assert store.dead_letters.get(QUEUE, found.id) == found
    assert store.sizes(QUEUE, DEFAULT).dead == store.dead_letters.count(QUEUE) == 1
    return found


def by_worker(store: Bench, message: bytes, details: bytes) -> None:
    [field] = store.hold(message)
    store.leases.dead_letter(QUEUE, "me", field, "a", "why", details)


def by_copy(store: Bench, message: bytes, details: bytes) -> None:
    repeating(store).add_dead_letter(QUEUE, "a", "why", message, details)


@each_details
@each_message
@pytest.mark.parametrize("die", [by_worker, by_copy])
def test_it_is_read_in_one_piece(
    store: Bench, die: Callable[..., None], message: bytes, details: bytes
) -> None:
    die(store, message, details)

    assert fields(store) == {b"a", NUL + b"a"}
    found = one(store)
    assert (found.id, found.reason, found.message) == ("a", "why", message)
    assert found.details == details


def test_from_so_many_bytes_on_it_has_its_own_field(store: Bench) -> None:
    for size in (LARGE - 1, LARGE):
        by_copy(store, b"x" * size, b"")
        assert (NUL + b"a" in fields(store)) == (size == LARGE)
        assert one(store).message == b"x" * size
        store.client.delete("{q}:dead", "{q}:dead_at")


def delete(store: Bench, found: DeadLettered) -> None:
    assert store.dead_letters.delete(QUEUE, [(found.id, found.died_ms)]) == ["d"]


def trim(store: Bench, _found: DeadLettered) -> None:
    store.add_dead_letter(QUEUE, "b", "why", b"x")
    assert store.dead_letters.trim(QUEUE, 0, 1, 10) == (0, 1)
    assert fields(store) == {b"b"}
    store.dead_letters.trim(QUEUE, 1e-9, 0, 10)


def replay(store: Bench, found: DeadLettered) -> None:
    entry = labelled("a")
    call = store.dead_letters.replay_call(
        QUEUE, QUEUE, DEFAULT, [Replay(found.id, found.died_ms, entry)], "token"
    )
    assert store.run(call) == b"d"


def replay_in_place(store: Bench, found: DeadLettered) -> None:
    times = found.died_ms, found.died_ms
    done = store.dead_letters.replay_in_place(QUEUE, DEFAULT, *times, b"", "0000" + "f" * 28)
    assert done.done == 1


@pytest.mark.parametrize("go", [delete, trim, replay, replay_in_place])
def test_nothing_of_it_stays_when_it_goes(
    store: Bench, go: Callable[[Bench, DeadLettered], None]
) -> None:
    message = sent()
    message["body"] = "x" * LARGE
    by_copy(store, encode(message), DETAILS)

    go(store, one(store))

    assert fields(store) <= {b"b"}


@each_details
def test_it_is_restored_once(store: Bench, details: bytes) -> None:
    by_copy(store, MESSAGES["a message"], details)
    found = one(store)

    for _ in range(2):
        assert store.dead_letters.restore(QUEUE, [("a", found.died_ms, found.data)]) == ["k"]
    delete(store, found)
    assert store.dead_letters.restore(QUEUE, [("a", found.died_ms, found.data)]) == ["d"]

    assert one(store) == found


def test_fsck_finds_nothing_wrong_and_lists_a_message_that_is_left_alone(store: Bench) -> None:
    by_copy(store, MESSAGES["a message"], DETAILS)
    repair = RepairStore(store)
    assert not repair.dead_letters(QUEUE, 0, repair=True).found
    assert not repair.deaths(QUEUE, 0, repair=True).found
    found = one(store)

    store.client.hdel("{q}:dead", "a")
    store.client.zrem("{q}:dead_at", "a")
    repair.dead_letters(QUEUE, 0, repair=True)

    [left] = store.dead_letters.all(QUEUE)
    assert left.message == found.message
    assert store.dead_letters.delete(QUEUE, [(left.id, left.died_ms)]) == ["d"]
    assert not fields(store)


@pytest.mark.parametrize("id", ["", "\0", "\0a"])
def test_no_name_is_that_of_a_message(store: Bench, id: str) -> None:
    store.add_dead_letter(QUEUE, "a", "why", MESSAGES["a message"])
    store.add_dead_letter(QUEUE, id, "why", b"x")

    assert sorted(map(len, store.dead_messages())) == [1, len(MESSAGES["a message"])]
