"""What is read and changed at the same time: each entry comes once, however it is moved.

Each public name of ``DelayQ`` is in one of the tables.
"""

from __future__ import annotations

import inspect
import json
import tracemalloc
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BytesIO
from itertools import islice
from typing import Any

import pytest

from celery_delayq import DeadLetter, DelayQ, Filter, Item
from celery_delayq.admin import rewrite
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.envelope import MAX_DUE_MS, Due
from celery_delayq.model.scheduled import ScheduledTask
from celery_delayq.schedule import bulk
from celery_delayq.store.scripting import calls
from celery_delayq.transfer import schedule as transfer
from tests.support.dead_letters import details, message, stored
from tests.support.runs import finished

pytestmark = pytest.mark.each_server

TASK, QUEUES = "shop.remind", ("one", "two", "three")
NUMBER, PAGE = 60, 10
IDS = [f"e{number:03}" for number in range(NUMBER)]

#: Called with what has been visited; changes entries.
Change = Callable[[DelayQ, str], object]
#: Reads all, and yields the id of each.
Reader = Callable[[DelayQ, Callable[[str], object]], Iterator[str]]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE_ENTRIES", PAGE)
    monkeypatch.setattr(bulk, "CHANGE_BATCH", 3)
    monkeypatch.setattr(rewrite, "PAGE_ENTRIES", PAGE)
    monkeypatch.setattr(transfer, "PAGE_ROWS", PAGE)


def fill(delayq: DelayQ, queues: tuple[str, ...] = QUEUES, number: int = NUMBER) -> list[str]:
    """Schedule entries of some queues, a second between two."""
    ids = [f"e{n:03}" for n in range(number)]
    items = [
        Item(countdown=7200 + n, id=id, queue=queues[n % len(queues)]) for n, id in enumerate(ids)
    ]
    assert delayq.schedule_many(items, task=TASK).counts == {"scheduled": number}
    return ids


# -- changes meanwhile


def once(change: Callable[[DelayQ], object]) -> Callable[[], Change]:
    """Return a change of all of them that is made at the first visit."""

    def new() -> Change:
        done: list[str] = []

        def at_first(delayq: DelayQ, id: str) -> None:
            if not done:
                done.append(id)
                change(delayq)

        return at_first

    return new


def each(**options: Any) -> Callable[[], Change]:
    """Return a change of what is visited."""
    return lambda: lambda delayq, id: delayq.reschedule(id, **options)


def move_all_twice(delayq: DelayQ) -> None:
    for hours in (1, -2):
        for id in IDS:
            delayq.reschedule(id, by=3600 * hours)


def send_again(delayq: DelayQ, id: str) -> None:
    delayq.cancel(id)
    delayq.app.send_task(TASK, task_id=f"{id}+", countdown=20_000, queue="one")


#: By name: what is done meanwhile.
CHANGES: dict[str, Callable[[], Change]] = {
    "by 10 s": each(by=10),
    "by an hour": each(by=3600),
    "10 s earlier": each(by=-10),
    "to one time": each(countdown=7300),
    "soon": each(countdown=60),
    "to now": lambda: lambda delayq, id: delayq.run_now(id),
    "updated": lambda: lambda delayq, id: delayq.update(id, args=[1], priority=9),
    "cancelled": lambda: lambda delayq, id: delayq.cancel(id),
    "sent again": lambda: send_again,
    "all by an hour": once(lambda delayq: [delayq.reschedule(id, by=3600) for id in IDS]),
    "all an hour earlier": once(lambda delayq: [delayq.reschedule(id, by=-3600) for id in IDS]),
    "all to one time": once(lambda delayq: [delayq.reschedule(id, countdown=90) for id in IDS]),
    "all in reverse order": once(
        lambda delayq: [
            delayq.reschedule(id, countdown=9000 - n) for n, id in enumerate(sorted(IDS))
        ]
    ),
    "all twice": once(move_all_twice),
}


# -- readers


def by_entries(filter: Filter) -> Reader:
    def read(delayq: DelayQ, _: Callable[[str], object]) -> Iterator[str]:
        yield from (entry.id for entry in delayq.entries(filter, page=PAGE))

    return read


def by_list(**options: Any) -> Reader:
    def read(delayq: DelayQ, _: Callable[[str], object]) -> Iterator[str]:
        cursor, is_first = None, True
        while is_first or cursor is not None:
            is_first = False
            page = delayq.list(limit=PAGE, cursor=cursor, **options)
            yield from [entry.id for entry in page]
            cursor = page.cursor

    return read


def by_export(delayq: DelayQ, visit: Callable[[str], object]) -> Iterator[str]:
    """Yield the ids in the exported file; visits happen after each page."""
    target, visited = BytesIO(), 0

    def ids() -> list[str]:
        records = map(json.loads, target.getvalue().splitlines())
        return [each["id"] for each in records if "id" in each]

    def progress(_: Any) -> None:
        nonlocal visited
        for id in ids()[visited:]:
            visited += 1
            visit(id)

    delayq.export_to(target, Filter(task=TASK), progress=progress)
    yield from ids()


READERS: dict[str, Reader] = {
    "entries": by_entries(Filter()),
    "entries of a queue": by_entries(Filter("one")),
    "entries of a task": by_entries(Filter(task=TASK)),
    "entries of a task and queue": by_entries(Filter("one", TASK)),
    "entries of a priority": by_entries(Filter(priority=0)),
    "list": by_list(),
    "list of a queue": by_list(queue="one"),
    "list of a task": by_list(task=TASK),
    "export_to": by_export,
}

#: Calls that read entries and change them: each is changed once.
BULK: dict[str, Callable[[DelayQ, Any], Any]] = {
    "cancel_all": lambda delayq, tell: delayq.cancel_all(Filter(task=TASK), progress=tell),
    "reschedule_all": lambda delayq, tell: delayq.reschedule_all(
        Filter(task=TASK), by=1800, progress=tell
    ),
    "reschedule_all, earlier": lambda delayq, tell: delayq.reschedule_all(
        Filter(task=TASK), by=-1800, progress=tell
    ),
    "run_all_now": lambda delayq, tell: delayq.run_all_now(Filter(task=TASK), progress=tell),
}

#: Names that read entries by those of the tables above, or what no change moves: by a test below.
OTHERS = {
    "cancel_canvas": "entries",
    "count": "entries, of a priority",
    "compat": "entries: it reads by the same pages",
    "rename": "test_a_rewrite_looks_at_each_once",
    "rewrite": "test_a_rewrite_looks_at_each_once",
    "dead_letters": "test_dead_letters_that_die_again_come_once",
    "dead_letter": "dead_letters",
    "list_dead": "test_dead_letters_that_die_again_come_once",
    "count_dead": "dead_letters",
    "replay_all": "dead_letters",
    "purge_all": "dead_letters",
    "export_dead": "dead_letters",
    "archive_dead": "dead_letters",
    "history": "test_runs_that_end_meanwhile_do_not_keep_the_history_going",
    "periodic": "test_periodic_entries_come_once",
}

#: Names that read one entry, or nothing page by page.
ONE = {
    *(
        "get",
        "find",
        "why",
        "cancel",
        "cancel_ids",
        "reschedule",
        "run_now",
        "update",
        "schedule_many",
        "pause",
    ),
    *("resume", "paused", "replay", "purge", "import_from", "import_dead", "stats", "context"),
    *("current_context", "add_context_provider", "close", "init_app", "of", "app", "store"),
    *("has_store", "schedule", "runs", "transfer", "admin", "revocation", "limits"),
    "updates",
}


def test_each_public_name_is_in_a_table() -> None:
    public = {name for name, _ in inspect.getmembers(DelayQ) if not name.startswith("_")}
    read = {name.split()[0].strip(",") for name in (*READERS, *BULK)}

    assert public == read | OTHERS.keys() | ONE
    assert {name for name in OTHERS.values() if name.startswith("test_")} <= globals().keys()


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("reader", READERS)
def test_each_entry_comes_once_however_it_is_moved_meanwhile(
    delayq: DelayQ, reader: str, what: str
) -> None:
    ids = fill(delayq, ("one",) if "queue" in reader else QUEUES)
    change = CHANGES[what]()

    visited: list[str] = []
    reading = READERS[reader](delayq, lambda id: change(delayq, id))
    for id in islice(reading, 5 * NUMBER):  # some without an end are seen as such
        visited.append(id)
        if reader != "export_to":
            change(delayq, id)

    assert sorted(id for id in visited if not id.endswith("+")) == ids


@pytest.mark.parametrize("what", [name for name in CHANGES if name.startswith("all")])
def test_a_rewrite_looks_at_each_once(delayq: DelayQ, what: str) -> None:
    ids = fill(delayq)
    change = CHANGES[what]()
    looked: list[str] = []

    def look(call: Any) -> None:
        looked.append(call.id)
        change(delayq, call.id)

    delayq.rewrite(look)

    assert sorted(looked) == ids


@pytest.mark.parametrize("what", [name for name in CHANGES if name.startswith("all")])
@pytest.mark.parametrize("call", BULK)
def test_a_change_of_all_looks_at_each_once(delayq: DelayQ, call: str, what: str) -> None:
    fill(delayq)
    change = CHANGES[what]()

    found = BULK[call](delayq, lambda _: change(delayq, ""))

    assert found.looked == NUMBER


@pytest.mark.parametrize("by", [10, 3600, -10, -3600])
def test_a_change_of_all_moves_each_once(delayq: DelayQ, by: int) -> None:
    ids = fill(delayq)
    before = {entry.id: entry.due for entry in delayq.entries()}

    assert delayq.reschedule_all(Filter(task=TASK), by=by).done == NUMBER

    moved = {entry.id: (entry.due - before[entry.id]).total_seconds() for entry in delayq.entries()}
    assert moved == dict.fromkeys(ids, by)


def test_all_are_run_last_first_over_pages_so_that_the_first_one_runs_next(delayq: DelayQ) -> None:
    ids = fill(delayq, ("one",))

    assert delayq.run_all_now(Filter(queue="one")).done == NUMBER

    ready = delayq.store.client.lrange("one", 0, -1)
    assert [json.loads(each)["headers"]["id"] for each in reversed(ready)] == ids


def test_pages_are_in_the_order_of_the_first_one_with_the_dues_of_now(delayq: DelayQ) -> None:
    fill(delayq)
    first = delayq.list(limit=PAGE)
    [last] = [each for each in delayq.entries() if each.id == IDS[-1]]
    delayq.reschedule(IDS[-1], by=-3600)

    reading = first.cursor
    found: list[ScheduledTask] = []
    while reading is not None:
        page = delayq.list(limit=PAGE, cursor=reading)
        found, reading = [*found, *page], page.cursor

    assert [each.id for each in found] == IDS[PAGE:]
    assert (last.due - found[-1].due).total_seconds() == 3600


def test_an_entry_out_of_the_range_is_read_where_it_was_moved_since(delayq: DelayQ) -> None:
    fill(delayq, ("one",))
    soon = next(iter(delayq.entries(page=1))).due
    delayq.reschedule(IDS[0], by=10_000)

    assert [each.id for each in delayq.entries(Filter(due_to=soon))] == []
    assert [each.id for each in delayq.entries(Filter(due_from=soon))][-1] == IDS[0]


def test_moves_are_kept_only_while_somebody_reads(delayq: DelayQ) -> None:
    fill(delayq, ("one",))
    client, keys = delayq.store.client, delayq.store.keys.queue("one")
    delayq.reschedule_all(Filter(queue="one"), by=60)
    assert client.exists(*keys.moves) == 0

    reading = delayq.entries(page=PAGE)
    for _ in range(3):
        delayq.reschedule_all(Filter(queue="one"), by=60)
    assert client.zcard(keys.moved) == NUMBER * 4  # a name, and the due before each move
    assert all(client.pttl(name) > 0 for name in keys.moves if client.exists(name))

    assert [each.id for each in reading] == IDS
    assert client.exists(*keys.moves) == 0


def test_old_moves_are_forgotten_while_others_begin_to_read(delayq: DelayQ) -> None:
    fill(delayq, ("one",))
    store, keys = delayq.store, delayq.store.keys.queue("one")
    sizes: list[int] = []
    for n in range(130):
        reading = delayq.entries(page=PAGE)
        store.client.zremrangebyrank(keys.readers, 0, -2)  # the one before has expired
        store.control.reschedule("one", [(id, Due(MAX_DUE_MS - n), None) for id in IDS])
        sizes.append(store.client.zcard(keys.moved) + store.client.zcard(keys.moved_before))

    assert 5000 < max(sizes) < 12_000
    assert sorted(each.id for each in reading) == IDS


def test_a_full_server_lets_itself_be_read(delayq: DelayQ) -> None:
    ids = fill(delayq)
    delayq.store.client.config_set("maxmemory", 1)
    try:
        assert [each.id for each in delayq.entries(page=PAGE)] == ids
    finally:
        delayq.store.client.config_set("maxmemory", 0)


@pytest.mark.nightly
def test_what_is_read_or_changed_takes_no_memory_for_each_entry(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 100_000
    monkeypatch.undo()
    # The cache of packed calls grows up to a bound, also with fewer entries.
    monkeypatch.setattr(calls, "_packed_head", lru_cache(1)(calls._packed_head.__wrapped__))
    items = (Item(countdown=7200 + n, id=f"e{n}", queue="one") for n in range(number))
    delayq.schedule_many(items, task=TASK)
    tracemalloc.start()
    try:
        assert sum(1 for _ in delayq.entries()) == number
        assert delayq.reschedule_all(Filter(task=TASK), by=3600).done == number
        assert delayq.run_all_now(Filter(task=TASK)).done == number
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 20,000 entries would take more, and the ids alone of 100,000.
    assert most < 5_000_000


# -- what is in no schedule


def dead_letters_in_pages(delayq: DelayQ, filter: DeadFilter) -> Iterator[DeadLetter]:
    page = delayq.list_dead(filter, limit=3)
    yield from page
    while page.cursor is not None:
        page = delayq.list_dead(filter, limit=3, cursor=page.cursor)
        yield from page


@pytest.mark.parametrize("in_pages", [False, True])
def test_dead_letters_that_die_again_come_once(delayq: DelayQ, in_pages: bool) -> None:
    store, now = delayq.store, delayq.session.now_ms()
    for n in range(20):
        data = stored(now - 20 + n, "it failed", message(f"d{n}"), details())
        store.dead_letters.restore("one", [(f"d{n}", now - 20 + n, data)])

    def die_again(id: str) -> None:
        dead_letter = delayq.dead_letter(id)
        assert dead_letter is not None
        delayq.purge(dead_letter)
        store.dead_letters.add("one", id, "it failed", message(id), details())

    filter = DeadFilter(task="shop.mail")
    found = dead_letters_in_pages(delayq, filter) if in_pages else delayq.dead_letters(filter)
    visited = []
    for each in islice(found, 100):
        visited.append(each.id)
        die_again(each.id)

    assert visited == [f"d{n}" for n in range(20)]
    assert delayq.count_dead() == 20


def test_runs_that_end_meanwhile_do_not_keep_the_history_going(delayq: DelayQ) -> None:
    history = delayq.store.history
    history.add("me", 1, 100_000, [finished(f"r{n}", n + 1) for n in range(20)])

    visited = []
    for number, run in enumerate(islice(delayq.history(), 100)):
        visited.append(run.id)
        history.add("me", number + 2, 100_000, [finished(f"new{number}", 100)])

    assert visited == [f"r{n}" for n in range(20)]


def test_periodic_entries_come_once(delayq: DelayQ) -> None:
    for n in range(150):
        delayq.periodic.add(f"p{n}", 3600.0, TASK)

    visited = []
    for entry in delayq.periodic.list():
        visited.append(entry.name)
        delayq.periodic.pause(entry.name)
        delayq.periodic.resume(entry.name)

    assert sorted(visited) == sorted(f"p{n}" for n in range(150))
