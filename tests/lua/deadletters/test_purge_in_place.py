"""purge_in_place.lua: dead letters of which nobody has to be told are deleted unparsed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from celery_delayq.model.dead_letter import CRASH_REASONS, DeadLetter, DeadLetterRecord, has_crashed
from celery_delayq.utils.message_json import encode
from tests.lua.bench import QUEUE, Bench, Calls
from tests.lua.dead_letters import DETAILS, DIED
from tests.lua.deadletters.test_replay_in_place import messages, sent

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/purge_in_place": (
        lambda s: s.dead_letters.purge_in_place("q", "-inf", "+inf", b"", "f" * 32),
        b"0 5 1 3 5\ntwo",
    ),
}

#: A member of a group, as Celery spells it, and the ways in which others may spell it.
GROUPS = [
    encode({"headers": {"id": "a", "task": "t", "group": "g"}}),
    encode({"headers": {"group": None}, "properties": {"delayq": {"group": "g"}}}),
    b'{"headers": {"group":"g"}}',
    b'{"headers": {"group" : "g"}}',
    b'{"headers": {"\\u0067roup": "g"}}',
    b'{"headers": {"gr\\u006Fup": "g"}}',
    b'{"headers": {"group": null, "group": "g"}}',
]
ALONE = encode(sent())
REASON = "failed: why"


def add(store: Bench, *found: tuple[bytes, str], details: bytes = DETAILS) -> list[bytes]:
    """Store dead letters with these messages and reasons, with ids from 0 on; return the ids."""
    store.register(QUEUE)
    for n, (message, reason) in enumerate(found):
        header = b"2 %d 0 %d %s\n" % (DIED + n, len(details), reason.encode())
        store.dead_letters.restore(QUEUE, [(str(n), DIED + n, header + details + message)])
    return [b"%d" % n for n in range(len(found))]


def purge(
    store: Bench,
    died_from: float | str = "-inf",
    after: bytes = b"",
    token: str = "f" * 32,
    **options: Any,
) -> Any:
    """Purge dead letters; return how many, the ids that are left, and whether there are more."""
    found = store.dead_letters.purge_in_place(QUEUE, died_from, "+inf", after, token, **options)
    return found.number, [id for id, _ in found.unread], found.has_more


def test_nothing_is_left_of_dead_letters_that_are_alone(store: Bench) -> None:
    add(store, *[(ALONE, REASON)] * 3, details=b'{"group": "of the details"}')
    store.dead_letters.restore(QUEUE, [("old", DIED, b"1 5 -1 why\n" + ALONE)])

    assert purge(store) == (4, [], False)
    assert store.state().keys() == {"delayq:queues"}


@pytest.mark.parametrize("message", GROUPS)
def test_a_member_of_a_group_stays(store: Bench, message: bytes) -> None:
    [member, _] = add(store, (message, REASON), (ALONE, REASON))

    assert purge(store) == (1, [member], False)
    assert [each.id for each in store.dead_letters.all(QUEUE)] == ["0"]


@pytest.mark.parametrize("reason", CRASH_REASONS)
def test_a_task_whose_worker_died_stays(store: Bench, reason: str) -> None:
    crashed, _ = add(store, (ALONE, f"{reason}5 times"), (ALONE, f"it said: {reason}5 times"))

    assert purge(store) == (1, [crashed], False)


def test_an_unreadable_one_stays(store: Bench) -> None:
    store.register(QUEUE)
    store.dead_letters.restore(QUEUE, [("odd", DIED, b"no header")])

    assert purge(store) == (0, [b"odd"], False)


def test_a_repeat_gets_the_same_answer(store: Bench) -> None:
    add(store, *[(ALONE, REASON)] * 3)

    assert purge(store, limit=2) == purge(store, limit=2) == (2, [], True)
    assert purge(store, token="e" * 32) == (1, [], False)


def test_many_calls_meet_each_dead_letter_once(store: Bench) -> None:
    found = [(GROUPS[0] if n % 2 else ALONE, REASON) for n in range(7)]
    add(store, *found)

    assert purge(store, limit=4) == (2, [b"1", b"3"], True)
    assert purge(store, DIED + 3.0, b"3", "e" * 32, limit=4) == (2, [b"5"], False)


def test_a_call_looks_at_about_a_megabyte(store: Bench) -> None:
    large = ALONE.replace(b"{", b'{"x": "%b", ' % (b"x" * 600_000), 1)
    add(store, *[(large, REASON)] * 3)

    assert purge(store) == (2, [], True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    message=messages(),
    reason=st.sampled_from([REASON, *(f"{each}5 times" for each in CRASH_REASONS)]),
)
def test_none_is_deleted_that_must_be_reported(
    store: Bench, message: dict[str, Any], reason: str
) -> None:
    store.client.flushall()
    add(store, (encode(message), reason))
    [record] = store.dead_letters.all(QUEUE)
    dead_letter = DeadLetter.of(QUEUE, DeadLetterRecord.unpack("0", record.data))

    number, _, _ = purge(store)

    reported = has_crashed(dead_letter) or dead_letter.group_id is not None
    event("deleted" if number else "left")
    assert not (number and reported)
