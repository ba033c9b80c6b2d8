"""All keys with times, tested after Redis' clock was set.

A *place* is ``<key> <part>``, by the names of :mod:`celery_delayq.store.keys`. A part is ``score``
of a sorted set, a field of a hash (``*``: any), ``value`` of a string, ``item`` of a list or a set,
``id`` of a stream, or ``expires``. :func:`places_in_scripts` finds all places in the source.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

PACKAGE = Path(str(files("celery_delayq")))
LUA = PACKAGE / "store" / "lua"

#: Times that decide what happens next, and the cells of
#: ``tests/integration/dispatch/test_clock_jumps.py`` that set the clock while the time is stored.
JUDGED = {
    "next_due score": "paced full deferred",
    "pace at": "paced",
    "pace tokens": "paced",
    "due score": "due",
    "leases score": "lease",
    "lease_ends score": "lease",
    "clock seen": "lease",
    "clock stood": "lease",
    "clock duty_at": "due",
    "clock duty": "due",
    "clock ready_looked": "ready_lists",
    "wake expires": "ready_lists",
    "clock dispatched": "dispatched",
    "clock ticked": "periodic",
    "clock set_back": "lanes",
    "lanes score": "lanes",
    "pace lanes": "lanes",
    "slots score": "lanes",
    "clock away_from": "missed_tick",
    "clock away_to": "missed_tick",
    "periodic *": "periodic",
    "periodic_at score": "periodic",
    "code_versions *": "code_versions",
    "revoked score": "revoked",
    "unique *": "unique_key",
    "quarantine_turn expires": "quarantine_turn",
    "archiving expires": "archiving",
    "celery_beats score": "celery_beats",
    "dead_at score": "dead_letter",
    "dead *": "dead_letter",
    "ready_index *": "skip_after",
    "leased_index *": "skip_after",
    "paused_due item": "paused_task",
    "tasks item": "paused_task",
    "history id": "history",
}

#: Times without a cell, and the reason.
SHOWN_OR_BRIEF = {
    "control *": "since when a queue or a task is paused: only shown",
    "totals epoch": "since when is counted: only shown",
    "answer expires": "a call that is repeated after a jump forward is a new call",
    "budget expires": "a jump forward may allow the retries of a canvas again",
    "interrupt expires": "ends a wait that is there already",
    "readers score": "after a jump forward by an hour what is moved may be read twice",
    "moved score": "later than when each reading began, whatever the clock says",
    "moved expires": "as for readers",
    "history_index value": "the offsets of runs, in the order in which they are written",
    "limits r": "a time ahead does not count: lanes keep the slots of their former rate",
    "worker_id expires": "fsck alone asks whether a worker id lives",
}

#: Places without times.
WITHOUT_TIME = {
    *("held score", "permits score", "blocked_lanes score", "freed_lanes score"),
    *("limits *", "limits c", "limits o"),
    *("tasks score", "paused_due score", "duplicate_ids score", "duplicate_ids item"),
    *("entries *", "leased *", "queues *", "request_numbers *", "deliveries *", "totals *"),
    *("pace below", "pace unpaused", "control revision", "clock cursor"),
    *("wake item", "quarantined item", "ready lists item", "budget item", "interrupt item"),
    *("answer value", "turning value", "moved value", "worker_id value", "quarantine_turn value"),
    *("archiving value", "cluster_tags value"),
}

#: Commands that store something, by the part that they store.
_WRITES = {
    **dict.fromkeys(("ZADD", "ZINCRBY", "ZUNIONSTORE", "ZRANGESTORE", "GEOADD"), "score"),
    **dict.fromkeys(("HSET", "HSETNX", "HMSET", "HINCRBY", "HINCRBYFLOAT"), "*"),
    **dict.fromkeys(("SET", "SETNX", "SETEX", "PSETEX", "GETSET", "APPEND", "INCR"), "value"),
    **dict.fromkeys(("INCRBY", "DECR", "SETRANGE", "RENAME", "COPY", "RESTORE"), "value"),
    **dict.fromkeys(("LPUSH", "RPUSH", "LINSERT", "LSET", "SADD", "LMOVE", "SMOVE"), "item"),
    **dict.fromkeys(("RPOPLPUSH", "LPUSHX", "RPUSHX"), "item"),
    **dict.fromkeys(("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "GETEX"), "expires"),
    "XADD": "id",
}
_WRITE = re.compile(rf"'({'|'.join(_WRITES)})',\s*")

#: Sorted sets whose members contain a time, or belong to one.
_MEMBERS = {"tasks", "paused_due", "duplicate_ids"}

#: Names of keys in includes and functions that differ from the key's own name.
_ALIASES = {
    ("include/dispatch/rate_limit.lua", "key"): "pace",
    ("include/idempotent_reply.lua", "key"): "answer",
    ("include/tracking.lua", "index"): "ready_index leased_index",
    ("include/wake.lua", "marker"): "wake",
    ("include/pages/reading.lua", "key"): "moved",
    ("include/pages/reading.lua", "moves[1]"): "readers",
    ("leases/requeue.lua", "list_of[step]"): "ready lists",
}
#: Names of KEYS that differ from those of :mod:`celery_delayq.store.keys`.
_KEYS = {
    "ready_list": "ready lists",
    "message_leased": "leased",
    "message_leased_index": "leased_index",
    "message_totals": "totals",
}
_LISTS = re.compile(r"list(_of\[.*)?$|KEYS\[(tonumber|FIRST\.ready_lists).*|ready$")


def places_in_scripts(folder: Path = LUA) -> dict[str, set[str]]:
    """Return each place to which a script writes, with the scripts."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("*.lua")):
        name = path.relative_to(folder).as_posix()
        source = path.read_text()
        for write in _WRITE.finditer(source):
            key, rest = _key_and_rest(source[write.end() :])
            for each in _names(name, key).split("  "):
                for what in _what(write[1], each, rest):
                    found[f"{each} {what}"].add(name)
    return found


def places_in_python(folder: Path = PACKAGE) -> dict[str, set[str]]:
    """Return each place to which a module writes directly, with the modules."""
    found: dict[str, set[str]] = defaultdict(set)
    calls = "|".join({*map(str.lower, _WRITES)})
    for path in sorted([*(folder / "store").rglob("*.py"), *(folder / "integration").glob("*.py")]):
        for write in re.finditer(rf"(?:client|pipe)\.({calls})\(([^,)(]+)(.*)", path.read_text()):
            command, key, rest = write.groups()
            place = _PYTHON.get((path.name, key.strip()), key.rpartition(".")[2])
            for what in _what(command.upper(), place, rest):
                found[f"{place} {what}"].add(path.name)
    return found


#: Names of keys in modules, by the variable that has them.
_PYTHON = {
    ("beat_guard.py", "key"): "celery_beats",
    ("dead_letters.py", "key"): "archiving",
    ("leases.py", "name"): "worker_id",
    ("leases.py", "self._keys.worker_id"): "worker_id",
    ("store.py", "key"): "interrupt",
    ("stores.py", "key"): "cluster_tags",
}


def _key_and_rest(text: str) -> tuple[str, str]:
    """Return the first argument of a call, and the others."""
    end = _end(text, ",")
    rest = text[end + 1 :]
    return text[:end].strip(), rest[: _end(rest)]


def _end(text: str, stop: str = "") -> int:
    """Return the end of the arguments: the closing bracket, or *stop* outside brackets."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0 or (depth == 0 and character == stop):
            return place
    return len(text)


def _names(script: str, key: str) -> str:
    if named := re.fullmatch(r"KEYS\.(\w+)", key):
        return _KEYS.get(named[1], named[1])
    if (script, key) in _ALIASES:
        name = _ALIASES[script, key]
        return name if name == "ready lists" else name.replace(" ", "  ")
    return "ready lists" if _LISTS.match(key) else key.lower()


def _what(command: str, key: str, rest: str) -> Iterator[str]:
    what = _WRITES[command]
    fields = re.findall(r"['\"]([a-z_]+)['\"]", rest)
    if what == "*":
        yield from fields or ["*"]
        return
    yield what
    if what == "score" and key in _MEMBERS:
        yield "item"
    if what == "value" and re.search(r"'P?X'|'EX'|[pe]x=|KEEPTTL", rest):
        yield "expires"
