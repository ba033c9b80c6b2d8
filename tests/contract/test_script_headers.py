"""Each script's header names arguments and reply of the script, and the roles that run it."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
from redis import Redis

import tests.lua
from celery_delayq.admin import accounts
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.store import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import Calls

pytestmark = pytest.mark.each_server

QUEUE, READY = Keys().queue("q"), set(Keys().ready_lists("q", Layout()))
LIST = Keys().ready("q", 3, Layout())
LUA = Path(str(files("celery_delayq").joinpath("store", "lua")))


def calls() -> Calls:
    """Return ``SCRIPT_CALLS`` of all modules with tests of scripts."""
    found: Calls = {}
    for module in walk_packages(tests.lua.__path__, "tests.lua."):
        if not module.name.endswith("conftest"):
            found |= getattr(import_module(module.name), "SCRIPT_CALLS", {})
    return found


#: One call of each script, and a reply to it.
CALLS = calls()

each_script = pytest.mark.parametrize("name", sorted(CALLS))

#: The keys that a header's name stands for, if it is not the name in ``keys.py``.
NAMES: dict[str, set[str]] = {
    "leased": {QUEUE.leased("me").decode()},
    "leased_of_workers": {QUEUE.leased("me").decode()},
    "dead": {QUEUE.dead, Keys().queue("p").dead},
    "dead_at": {QUEUE.dead_at, Keys().queue("p").dead_at},
    "budget": {Keys().budget("root")},
    "worker_id": {Keys().worker_id("me")},
    "message_leased": {Keys().queue("p").leased("me").decode()},
    "message_deliveries": {Keys().queue("p").deliveries},
    "message_leased_index": {Keys().queue("p").leased_index},
    "message_totals": {Keys().queue("p").totals},
    "due_of_queues": {QUEUE.due},
    "due_and_lanes": {QUEUE.due, QUEUE.lanes},
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
    """Return the keys that a name in a header may stand for."""
    if name in NAMES:
        return NAMES[name]
    if name == "answer":
        return {QUEUE.answer("token"), Keys().answer("token")}
    for owner in (QUEUE, Keys()):
        if isinstance(getattr(owner, name, None), str):
            return {getattr(owner, name)}
    raise AssertionError(f"{name} is in no table of keys")


def test_every_script_has_a_call_in_its_test() -> None:
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
    # On an empty database fields, marks or batches may be missing; the other parts must be alike.
    reply = Store(delayq_redis.client, Keys(), Layout()).run(recorder.call)

    assert type(reply) is type(prepared)
    if isinstance(reply, list):
        assert [type(one) for one in reply] == [type(one) for one in prepared[: len(reply)]]
