"""Each script's header says what its caller passes and gets, and who runs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_delayq.admin import accounts
from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.model.lookup import EntryCondition
from celery_delayq.store.dead_letters import Replay
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.periodic import EntryTicks, Writing
from celery_delayq.store.repair import Release
from celery_delayq.store.repair_tracking import Tracked
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.replies import Held
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.leases import ack

pytestmark = pytest.mark.each_server

QUEUE, READY = Keys().queue("q"), set(Keys().ready_lists("q", Layout()))
LIST = Keys().ready("q", 3, Layout())
DATA = Record(3, "message_id", "task", b"{}").pack()
ENTRY = Entry("id", Due(5), 3, DATA)
REPLAY = Replay("id", 5, ENTRY)
TICKS = EntryTicks("name", "line", "then", 7, "line", 6, [ENTRY])
TRACKED = Tracked(b"id", b"m1 5 - task")
FORGET = Call("leases/forget_counts", ["{q}:deliveries"], ["d", "1"])
LUA = Path(str(files("celery_delayq").joinpath("store", "lua")))


def drop_cancelled(keys: Keys) -> Call:
    key = keys.queue("q")
    all_keys = [*key.state, keys.ready("q", 3, Layout()), key.turning(LIST)]
    return Call("repair/drop_cancelled", all_keys, [5, 1, 1, *TRACKED, b"{}"])


def ready(store: Store) -> object:
    call = store.ready_call("q")
    call.add(3, b"{}")
    return store.run(call)


#: One call of each script, and the reply to it.
CALLS: dict[str, tuple[Callable[[Store], object], Any]] = {
    "schedule/add": (lambda s: s.schedule("q", ENTRY), [5, b"s"]),
    "dispatch/promote": (lambda s: s.promote("q", Layout(), 100), [5, b"", b"", 1, 0, 0]),
    "dispatch/next_queue": (lambda s: s.next_queue(left=["r"]), [5, b"q", b"7", 0, 1, 2, 1, b"q"]),
    "dispatch/planned_looks": (
        lambda s: s.announce_missing([("q", Layout())], 5),
        [[b"7", b"7", 0]],
    ),
    "schedule/push_ready": (ready, 1),
    "leases/acquire": (
        lambda s: s.leases.acquire("q", "me", 30.0, "1", 5),
        [0, b"0", b"0 1:1", b"", b"{}"],
    ),
    "leases/signs": (lambda s: s.run(Call("leases/signs", [s.keys.queue("q").wake], [])), [1]),
    "leases/ack": (lambda s: ack(s, "q", "me", ["1:1"]), [1, 1]),
    "leases/extend": (lambda s: s.leases.extend("q", "me", 30.0), 1),
    "leases/requeue": (lambda s: s.leases.requeue("q", "me", ["1:1"]), [1, 0, 1]),
    "leases/dead_letter": (lambda s: s.leases.dead_letter("q", "me", "1:1", "id", "why"), 1),
    "leases/replace": (
        lambda s: s.run(
            s.leases.replace_call("q", ENTRY, "p", "me", "1:1", head=b"", when_due="push")
        ),
        b"ready",
    ),
    "leases/reclaim_expired": (
        lambda s: s.leases.reclaim_expired("q", Layout(), "me", 100, 5),
        [b"0", 1, 0, 0],
    ),
    "dispatch/defer_queue": (lambda s: s.defer_queue("q", 1.0, ["r"]), [5, b"q", b"7"]),
    "dispatch/wake_ready": (lambda s: s.run(s.wake_ready_call("q", Layout())), 1),
    "dispatch/resign": (lambda s: s.resign("me"), 1),
    "schedule/counts": (
        lambda s: s.gauges.sizes("q", Layout()),
        [b"5 1 1 7 0 0 0 - 0 me", b"acked 1"],
    ),
    "scan/tasks": (lambda s: s.run_steps(s.scheduled_tasks_steps("q")), [b"", b"tasks.add", 1]),
    "schedule/purge": (lambda s: s.purge("q"), [3, 1, 2]),
    "schedule/forget_unowned": (lambda s: s.forget_unowned("q"), b"0"),
    "schedule/exists": (lambda s: s.control.exists("q", [("id", "message_id")]), b"-"),
    "control/find": (lambda s: s.control.find("q", ["id"]), [1, b"["]),
    "control/queues_with": (lambda s: s.control.queues_with(["q"], ["id"]), [1]),
    "scan/hash_scan": (lambda s: [*s.scan.fields("{q}:dead")], [b"0", b"2 3", b"idone"]),
    "scan/hash_values": (lambda s: s.scan.values("{q}:dead", [b"id"]), [b"3", b"one"]),
    "scan/list_range": (
        lambda s: [*s.scan.messages(s.keys.ready("q", 3, s.layout), 0, 1, 1)],
        [b"2", b"{}"],
    ),
    "scan/range": (
        lambda s: s.control.page("q", EntryCondition(), 10),
        [b"0", b"7", b"id", b"2 -1 1", b"id7", b""],
    ),
    "control/cancel": (lambda s: s.control.cancel("q", Layout(), ["id"]), b"d"),
    "control/reschedule": (lambda s: s.control.reschedule("q", [("id", Due(5), None)]), b"d"),
    "control/run_now": (lambda s: s.control.run_now("q", Layout(), ["id"]), b"d"),
    "control/pause": (lambda s: s.control.pause(["q"], task="t"), b"1"),
    "control/revoke": (lambda s: s.control.revoke(5.0, ["id"]), 1),
    "migration/take_from_unacked": (
        lambda s: s.take_from_unacked("q", ENTRY, Held("u", "ui", "tag")),
        b"gone",
    ),
    "migration/give_back": (
        lambda s: s.repair.give_back("q", Layout(), [Release("id", 5.0, DATA, b"{}")]),
        b"d",
    ),
    "repair/forget_ready": (
        lambda s: s.repair_tracking.forget_ready("q", Layout(), [(Tracked(b"id", b"value"), b"")]),
        1,
    ),
    "repair/drop_cancelled": (lambda s: s.run(drop_cancelled(s.keys)), 4),
    "deadletters/add": (lambda s: s.dead_letters.add("q", "id", "reason", b"{}"), 1),
    "deadletters/replay_in_place": (
        lambda s: s.dead_letters.replay_in_place("q", Layout(), "-inf", "+inf", b"", "f" * 32),
        b"0 5 1 3 5\ntwo",
    ),
    "deadletters/replay": (
        lambda s: s.run(s.dead_letters.replay_call("p", "q", Layout(), [REPLAY], "token")),
        b"d",
    ),
    "deadletters/delete": (lambda s: s.dead_letters.delete("q", [("id", 5)]), b"d"),
    "deadletters/page": (
        lambda s: s.run(s.dead_letters.page_call("q", 1, 2, 10, b"id")),
        [b"0", b"2 -1 1", b"id5"],
    ),
    "deadletters/trim": (lambda s: s.dead_letters.trim("q", 60.0, 10, 100), [0, 1]),
    "periodic/claim_due": (
        lambda s: s.periodic.claim_due(10, 500, ["other"]),
        [5000, b"7", b"", 1, b"name", b"line\n{}"],
    ),
    "periodic/compare_and_set": (
        lambda s: s.periodic.write([Writing("name", "", "line\n{}", 7)]),
        b"d",
    ),
    "periodic/fire": (lambda s: s.run(s.periodic.fire_call("q", [TICKS])), [b"s"]),
    "periodic/announce_version": (
        lambda s: s.periodic.announce_version("code", "1", None, 60),
        [b"1", b"", b"5"],
    ),
    "history/add": (lambda s: s.history.add("me", 2, 100, [b"line"]), 1),
    "schedule/import": (lambda s: s.run(s.import_call("q", [ENTRY], "token")), b"s"),
    "deadletters/restore": (
        lambda s: s.dead_letters.restore("q", [("id", 5, b"1 5 0 why\n{}")]),
        b"d",
    ),
    "leases/use_retry_budget": (lambda s: s.control.use_retry_budget("root", 5, "id 0", 60), 1),
    "leases/release_quarantined": (
        lambda s: s.repair.release_quarantined("q", Layout()),
        [1, 0],
    ),
    "leases/forget_empty": (lambda s: s.repair.forget_empty_leases("q", ["me"]), 0),
    "leases/forget_counts": (lambda s: s.run(FORGET), 1),
    "repair/due": (lambda s: s.repair.due("q", 0, repair=True), [b"0", 0, []]),
    "repair/entries": (lambda s: s.repair.entries("q", 0, repair=True), [b"0", 0, []]),
    "repair/gone": (
        lambda s: s.repair_tracking.gone("q", ["me"], [TRACKED], repair=True),
        [b"0", 1, []],
    ),
    "repair/index": (
        lambda s: s.repair.index("q", 0, repair=True),
        [b"0", 1, [b"left"], [b"misindexed", 1, 1, b"left"]],
    ),
    "repair/leases": (
        lambda s: s.repair.leases("q", ["me"], 1.0, repair=True),
        [b"0", 1, []],
    ),
    "repair/dead_letters": (
        lambda s: s.repair.dead_letters("q", 0, repair=True),
        [b"0", 0, []],
    ),
    "repair/paused_and_due": (
        lambda s: s.repair_tracking.paused_due("q", 0, repair=True),
        [b"0", 1, [b"left"]],
    ),
    "repair/queue": (
        lambda s: s.repair.queue("q", Layout(), 1.0, repair=True),
        [b"0", 1, []],
    ),
    "repair/periodic": (lambda s: s.repair.periodic("", 0, repair=True), [b"0", 1, []]),
    "repair/schedule": (lambda s: s.repair.schedule("q", {b"id": DATA}), [b"0", 1, []]),
    "repair/totals": (
        lambda s: s.repair_tracking.totals("q", Layout(), ["me"], repair=True),
        [b"0", 0, []],
    ),
    "repair/types": (lambda s: s.repair_types(), []),
    "repair/tracking": (lambda s: s.repair_tracking.running("q", 0, repair=True), [b"0", 0, []]),
}

each_script = pytest.mark.parametrize("name", sorted(CALLS))

#: The keys that a header's name stands for, if it is not the name in ``keys.py``.
NAMES: dict[str, set[str]] = {
    "leased": {QUEUE.leased("me").decode(), Keys().queue("p").leased("me").decode()},
    "leased_of_workers": {QUEUE.leased("me").decode()},
    "dead": {QUEUE.dead, Keys().queue("p").dead},
    "dead_at": {QUEUE.dead_at, Keys().queue("p").dead_at},
    "budget": {Keys().budget("root")},
    "worker_id": {Keys().worker_id("me")},
    "message_leased_index": {Keys().queue("p").leased_index},
    "message_totals": {Keys().queue("p").totals},
    "deliveries": {QUEUE.deliveries, Keys().queue("p").deliveries},
    "due_of_queues": {QUEUE.due},
    "hash": {QUEUE.dead},
    "list": {LIST},
    "lists": {QUEUE.wake},
    "ready_list": {LIST},
    "ready_lists": READY | {QUEUE.quarantined},
    "ready_lists_and_leased": READY | {QUEUE.leased("me").decode()},
    "turning": {QUEUE.turning(LIST)},
    "unacked": {"u"},
    "unacked_index": {"ui"},
    "keys_by_id": {*QUEUE.by_id},
}


class Recorder(Store):
    """A store that keeps the call and gives the prepared reply."""

    def __init__(self, reply: Any, names: Keys) -> None:
        super().__init__(Redis(), names, Layout())  # never connects
        self.reply = reply
        self.call = Call("", [], [])

    def run(self, call: Call) -> Any:
        keys = [key.decode() if isinstance(key, bytes) else key for key in call.keys]
        self.call = Call(call.name, keys, [*call.args])
        return self.reply


def source(path: str) -> str:
    return LUA.joinpath(f"{path}.lua").read_text("utf-8")


def code(text: str) -> str:
    """Return Lua source without its comments."""
    return re.sub(r"--.*", "", text)


def call_of(name: str, names: Keys | None = None) -> Recorder:
    call, reply = CALLS[name]
    recorder = Recorder(reply, names or Keys())
    call(recorder)
    keys = [re.sub(r":answer:[\w-]+", ":answer:token", key) for key in recorder.call.keys]
    recorder.call.keys = keys
    return recorder


def keys_named(name: str) -> set[str]:
    """Return which keys may stand where a header says *name*."""
    if name in NAMES:
        return NAMES[name]
    if name == "answer":
        return {QUEUE.answer("token"), Keys().answer("token")}
    for owner in (QUEUE, Keys()):
        if isinstance(getattr(owner, name, None), str):
            return {getattr(owner, name)}
    raise AssertionError(f"{name} is in no table of keys")


def test_every_script_has_a_call_here() -> None:
    assert sorted(CALLS) == scripts.names()


@each_script
def test_the_call_passes_the_keys_and_arguments_that_the_header_names(name: str) -> None:
    header, call = scripts.load(name).header, call_of(name).call

    for names, given in ((header.keys, call.keys), (header.args, call.args)):
        assert not any(each.endswith("…") for each in names[:-1]), "more in the middle"
        is_open = names and names[-1].endswith("…")
        assert len(given) == len(names) or (is_open and len(given) > len(names))

    for place, key in enumerate(header.keys):
        here = call.keys[place:] if key.endswith("…") else [call.keys[place]]
        assert set(here) <= keys_named(key.removesuffix("…")), f"{name}.lua {key}"
    assert len(set(call.keys)) == len(call.keys)


@each_script
def test_the_script_reads_what_the_header_names_and_no_number(name: str) -> None:
    header = scripts.load(name).header
    sources = [
        source(name),
        *(source(f"include/{include}") for include in scripts.load(name).header.includes),
    ]
    body = code("\n".join(sources))
    read = set(re.findall(r"\b(?:KEYS|ARGV|FIRST)\.\w+", body))

    for part, names in (("KEYS", header.keys), ("ARGV", header.args)):
        for each in names:
            is_read = f"{part}.{each}" in read or f"FIRST.{each.removesuffix('…')}" in read
            takes_all = each.endswith("…") and re.search(rf"(unpack|ipairs)\({part}\)", body)
            if f"{each}: not read" in header.parts[part]:
                assert not is_read
            else:
                assert is_read or takes_all, f"{name}.lua does not read {part}.{each}"
    assert not re.search(r"\b(KEYS|ARGV)\[\d", body)


@each_script
def test_every_header_says_what_it_returns_what_a_repeat_does_and_who_runs_it(name: str) -> None:
    parts = scripts.load(name).header.parts

    assert list(parts) == ["KEYS", "ARGV", "Returns", "Repeat", "Roles"]
    assert all(parts.values())
    assert {*scripts.load(name).header.roles} <= {*accounts.ROLES}


@each_script
def test_the_replies_prepared_here_are_like_those_of_redis(
    name: str, delayq_redis: RedisUnderTest
) -> None:
    recorder = call_of(name)
    prepared = recorder.reply
    # On an empty database a field, a mark or a batch may be missing; what is there is alike.
    reply = Store(delayq_redis.client, Keys(), Layout()).run(recorder.call)

    assert type(reply) is type(prepared)
    if isinstance(reply, list):
        assert [type(one) for one in reply] == [type(one) for one in prepared[: len(reply)]]
