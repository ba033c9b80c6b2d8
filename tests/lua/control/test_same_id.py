"""Many or large messages by id: each call does a bounded amount of work."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.store import control
from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.calls import Call
from tests.lua.bench import FAR, QUEUE, Bench, Recording, entry, labelled, message_of, repeating
from tests.lua.uniques import owned, where_it_is
from tests.support.model_state import observed


def put_many(store: Bench, count: int, id: str = "a") -> None:
    """Schedule messages with one id."""
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        store.put(*(labelled(id, FAR + n, message_id=f"n{n:06}") for n in numbers))


def commands(store: Bench) -> int:
    """Return the number of commands that the server has run, including those of scripts."""
    stats = store.client.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_info")


class Watching(Bench):
    """A store that notes the number of commands of each call, and may act before a call."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, store: Bench) -> None:
        super().__init__(store.client, store.keys, store.layout)
        self.costs: list[int] = []

    def run(self, call: Call) -> Any:
        """Make a call."""
        self.before()
        before = commands(self)
        reply = super().run(call)
        self.costs.append(commands(self) - before)
        return reply


# -- unique keys


def leave(store: Bench, place: str) -> None:
    """Let the owner of a key leave its state."""
    if place == "scheduled":
        store.become_due("a")
        assert store.promote().moved == 1
    elif place == "ready":
        assert len(store.acquire().messages) == 1
    else:
        assert store.ack("1:1") == 1


@where_it_is
@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0", "k 0 0", ""])
def test_a_key_takes_no_more_commands_when_many_have_the_id_of_its_owner(
    store: Bench, place: str, policy: str
) -> None:
    """Another message requests the key or, without a policy, the owner leaves its state."""

    costs = []
    for number in (2, 2, 1000):
        store.client.flushall()
        store.next_queue()
        owned(store, place, id="a")
        put_many(store, number)
        watching = Watching(store)
        if policy:
            [became] = watching.states(labelled("new", unique="dk", policy=policy))
            assert became in ("kept", "replaced", "scheduled")
        else:
            leave(watching, place)
        costs.append(watching.costs)

    # The first call also has to send some of the scripts.
    assert costs[1] == costs[2]


# -- many calls for one id

LATER = FAR + 10**9

Change = Callable[[Bench, Sequence[str]], Sequence[Any]]

#: Calls by id; `cancel` comes last, since it leaves nothing to change.
CHANGES: dict[str, Change] = {
    "find": lambda store, ids: store.control.find(QUEUE, ids),
    "reschedule": lambda store, ids: store.control.reschedule(
        QUEUE, [(id, Due(LATER), None) for id in ids]
    ),
    "run_now": lambda store, ids: store.run_now(*ids),
    "cancel": lambda store, ids: store.cancel(*ids),
}


def learn_scripts(store: Bench) -> None:
    for name in ("find", "reschedule", "run_now", "cancel"):
        store.client.script_load(scripts.load(f"control/{name}").source)


def change_all(store: Bench, name: str, ids: Sequence[str], number: int) -> list[int]:
    """Change all messages with *ids*; return the number of commands of each call."""
    watching = Watching(store)
    found = CHANGES[name](watching, ids)
    assert len(found) == number if name == "find" else found == ["d"] * len(ids)
    return watching.costs


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    "number",
    [
        1000,
        pytest.param(20_000, marks=pytest.mark.full),
        pytest.param(100_000, marks=[pytest.mark.full, pytest.mark.nightly]),
    ],
)
def test_a_call_does_not_much_more_for_one_id_that_many_have_than_for_many_ids(
    store: Bench, name: str, number: int
) -> None:
    learn_scripts(store)
    batch = control.ID_BATCH * (control.CANCEL_ID_BATCHES if name == "cancel" else 1)
    ids = [f"id{n}" for n in range(batch)]
    store.put(*map(labelled, ids))
    [most] = change_all(store, name, ids, batch)
    put_many(store, number)

    costs = change_all(store, name, ["a"], number)

    # The id alone is one of the names.
    assert number // batch <= len(costs) <= number // (batch - 1) + 1
    assert max(costs) <= 1.5 * most


@pytest.mark.parametrize("names", [1, 2, 3, 7])
@pytest.mark.parametrize("name", CHANGES)
def test_calls_that_look_at_few_names_do_the_same_as_one(
    store: Bench, monkeypatch: pytest.MonkeyPatch, name: str, names: int
) -> None:
    """Also with each reply lost. Some messages run, some are ready, some are scheduled."""
    found = []
    for number in (names, 100):
        store.client.flushall()
        store.next_queue()
        monkeypatch.setattr(control, "ID_BATCH", 100)
        for n in (5, 2, 8):
            store.make_ready(labelled("a", message_id=f"n{n}", unique=f"d{n}"))
        store.acquire(limit=2)
        store.put(
            *(labelled("a", FAR + n, message_id=f"n{n}", unique=f"s{n}") for n in (4, 9, 1, 6)),
        )
        store.put(*map(labelled, "bc"), labelled("b", message_id="b2"))
        monkeypatch.setattr(control, "ID_BATCH", number)
        told = CHANGES[name](repeating(store), ["b", "a", "never was", "c", "a"])
        found.append((told, observed(QUEUE, store.state())))

    assert found[0] == found[1]


class Meanwhile:
    """A dispatcher and a worker that act between two calls, so that messages change their names.

    *touched* are the message ids of all messages that the worker has leased at any time.
    """

    def __init__(self, store: Bench, seed: int) -> None:
        self.store, self.random = store, random.Random(seed)
        self.requests = count(1)
        self.held: dict[str, Entry] = {}
        self.entries: dict[bytes, Entry] = {}
        self.touched: set[str] = set()

    def put_all(self) -> None:
        """Send messages with one id; some become ready or leased."""
        message_ids = [f"n{n:02}" for n in range(24)]
        self.random.shuffle(message_ids)
        for number, message_id in enumerate(message_ids):
            one = labelled("a", FAR, message_id=message_id)
            self.entries[message_of(one)] = one
            (self.store.put if number % 3 else self.store.make_ready)(one)
        for _ in range(4):
            self.acquire()

    def go_on(self) -> None:
        """Do a random action."""
        for _ in range(self.random.randrange(4)):
            self.random.choice([self.promote, self.acquire, self.requeue, self.put_off, self.ack])()

    def promote(self) -> None:
        if names := self.store.client.zrange("{q}:due", 0, -1):
            self.store.become_due(self.random.choice(names).decode())
            self.store.promote()

    def acquire(self) -> None:
        for field, message, _ in self.store.acquire(str(next(self.requests)), 1).messages:
            self.held[field] = self.entries[message]
            self.touched.add(message_id_of(self.held[field]))

    def take(self) -> tuple[str, Entry] | None:
        field = self.random.choice([*self.held, None])
        return None if field is None else (field, self.held.pop(field))

    def requeue(self) -> None:
        if one := self.take():
            self.store.requeue(one[0])

    def put_off(self) -> None:
        """Replace a leased message by itself, as for a paused task."""
        if one := self.take():
            field, entry = one
            self.store.replace(entry, field=field, when_due="keep")
            self.store.ack(field)

    def ack(self) -> None:
        if one := self.take():
            self.store.ack(one[0])


def message_id_of(entry: Entry) -> str:
    return Record.unpack(entry.data).message_id


def unchanged(store: Bench, name: str) -> set[str]:
    """Return the message ids of messages without the change."""
    scheduled = {
        Record.unpack(data).message_id
        for key, data in store.client.hgetall("{q}:entries").items()
        if name != "reschedule" or store.client.zscore("{q}:due", key) != LATER
    }
    waiting = store.client.hvals("{q}:ready_index") if name == "cancel" else []
    return scheduled | {one.split()[0].decode() for one in waiting if not one.startswith(b"!")}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["reschedule", "run_now", "cancel"])
def test_what_moves_between_two_calls_is_changed_unless_a_worker_has_had_it(
    store: Bench, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    meanwhile = Meanwhile(store, seed)
    meanwhile.put_all()
    watching = Watching(store)
    watching.before = meanwhile.go_on
    monkeypatch.setattr(control, "ID_BATCH", 2)

    CHANGES[name](watching, ["a"])

    assert len(watching.costs) > 5
    assert unchanged(store, name) <= meanwhile.touched


# -- large messages

#: Number of messages, and bytes of each; four of them fit into a call.
COUNT, SIZE, CALLS = 12, 300_000, 3

IDS = [f"id{n:02}" for n in range(COUNT)]


def schedule(store: Bench, ids: list[str]) -> None:
    """Schedule messages under these ids, one after the other."""
    for n in range(COUNT):
        message = b"{%02d" % n + b"." * SIZE
        store.schedule(
            QUEUE, entry(ids[n % len(ids)], FAR + n, message_id=f"n{n:02}", message=message)
        )


@pytest.mark.parametrize("ids", [IDS, ["id"]], ids=["of their own", "one for all"])
@pytest.mark.parametrize("name", CHANGES)
def test_entries_are_found_about_a_megabyte_at_once(
    store: Bench, name: str, ids: list[str]
) -> None:
    schedule(store, ids)

    recording = Recording(store)
    found = CHANGES[name](recording, ids)

    assert len(found) == COUNT if name == "find" else found == ["d"] * len(ids)
    assert len(recording.calls) == CALLS


def test_messages_are_known_about_a_megabyte_at_once(store: Bench) -> None:
    schedule(store, IDS)
    asked = [(id, "other" if n % 3 == 0 else f"n{n:02}") for n, id in enumerate(IDS)]

    recording = Recording(store)
    assert recording.control.exists(QUEUE, asked) == "-dd" * (COUNT // 3)
    assert len(recording.calls) == CALLS
