"""Rebuild outcomes from Redis' log of writes.

Redis' append-only file has the effects of each script as one group of plain commands. They are
replayed here on plain Python values. The places of a message before and after a group show its
outcome.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from celery_delayq.model.totals import Totals
from tests.support.resp import arguments, frame_end
from tests.support.totals import present_by

Command = tuple[bytes, ...]

#: Kinds of reasons by the texts of dead letters.
_REASONS = {
    rb"failed": "failed",
    rb"unknown task": "unknown_task",
    rb"undecodable": "undecodable",
    rb"its worker died|killed its process": "crashed",
    rb"skipped: ": "skipped",
    rb"no queue is bound": "unbound",
    rb"unreadable|no record": "corrupt",
    rb"": "rejected",
}
_DEAD = re.compile(rb"(?:1 \d+ \d+ |2 \d+ \d+ (\d+) )([^\n]*)\n(.*)", re.DOTALL)

#: Outcomes by the place from which a message comes and the place to which it goes.
_MOVES = {
    ("leased", "ready"): "back",
    ("leased", "dead"): "dead",
    ("ready", "dead"): "dead",
    ("scheduled", "dead"): "dead",
    ("dead", "scheduled"): "replayed",
    ("dead", "ready"): "replayed",
    ("scheduled", "ready"): "promoted",
    ("ready", "leased"): "leased",
}


def groups(folder: Path) -> Iterator[list[Command]]:
    """Yield the commands of an append-only file; a group is one script or transaction."""
    number = re.compile(r"\.(\d+)\.incr\.aof$")
    parts = {int(m[1]): path for path in folder.rglob("*.aof") if (m := number.search(path.name))}
    files = [parts[n] for n in sorted(parts)] or [folder / "appendonly.aof"]
    together: list[Command] | None = None
    for path in files:
        data = path.read_bytes()
        at = 0
        while at < len(data) and (end := frame_end(data, at)) > 0:
            command = tuple(arguments(data[at:end]))
            at = end
            name = command[0].upper()
            if name == b"MULTI":
                together = []
            elif name == b"EXEC":
                yield together or []
                together = None
            elif together is not None:
                together.append(command)
            else:
                yield [command]


def _retries(message: bytes) -> bytes | None:
    found = re.search(rb'"retries": (\d+)', message)
    return found and found[1]


class Journal:
    """Counts the outcomes of the messages of one queue, group after group.

    Attributes
    ----------
    counted : Counter[str]
        By the names of ``model/totals.py``. Cancelled and replaced messages are both ``dropped``
        here. Stock producers' messages are accepted at once.
    off : list[str]
        Where the counters in Redis were wrong.
    """

    def __init__(self, queue: str) -> None:
        self.counted: Counter[str] = Counter()
        self.off: list[str] = []
        self.totals = Totals()
        own = f"{{{queue}}}:"
        self._ready = re.compile(re.escape(queue.encode()) + rb"(\x06\x16\d+)?")
        self._own = own.encode()
        self._hashes: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        self._lists: dict[bytes, list[bytes]] = defaultdict(list)
        self._due: set[bytes] = set()
        self._here: Counter[str] = Counter()
        self._unseen = 0
        self._moved: Counter[tuple[str, bytes]] = Counter()
        self._replaced: list[bytes] = []
        self._reasons: dict[bytes, str] = {}
        self._counts_deliveries = self._has_counted = False

    def read(self, folder: Path) -> Journal:
        """Read a whole file."""
        for group in groups(folder):
            self.apply(group)
        return self

    def compare(self) -> Counter[str]:
        """Return the counters in Redis; fail if they differ from the counts here."""
        assert self.off == []
        totals, ledger = self.totals, self.counted.copy()
        found = Counter(totals.counts | {f"dead:{k}": n for k, n in totals.dead_lettered.items()})
        found["dropped"] = found.pop("cancelled") + found.pop("replaced") + found.pop("taken")
        for name in ("leased", "back"):
            ledger.pop(name, None)
        assert +found == +ledger
        return found

    def apply(self, group: list[Command]) -> None:
        """Apply the commands of one script, and count the outcomes of messages."""
        self._moved, self._replaced, self._reasons = Counter(), [], {}
        self._counts_deliveries = self._has_counted = False
        for name, *args in group:
            handler = getattr(self, f"_{name.decode().lower()}", None)
            if handler is not None:
                handler(*args)
        self._judge(group)

    def _judge(self, group: list[Command]) -> None:
        before = self._here.copy()
        by_message: dict[bytes, Counter[str]] = defaultdict(Counter)
        for (place, message), number in self._moved.items():
            by_message[message][place] += number
            self._here[place] += number
        came: list[bytes] = []
        replaced: list[bytes] = []
        for message, change in by_message.items():
            for (source, sink), what in _MOVES.items():
                number = min(-change[source], change[sink])
                if number > 0:
                    change[source] += number
                    change[sink] -= number
                    self._count(what, number, message)
            came += [message] * max(0, change["scheduled"] + change["ready"])
            for place in ("scheduled", "ready", "leased"):
                if change[place] < 0 and message in self._replaced and place == "leased":
                    replaced.append(message)
                elif change[place] < 0:
                    self._count("acked" if place == "leased" else "dropped", -change[place])
            if change["dead"] > 0:
                self._count("dead", change["dead"], message)
                self.counted["aside"] += change["dead"]
        # A message that replaces a leased one is its retry, or the same task for later.
        for old, new in zip(replaced, came, strict=False):
            self.counted["retried"] += _retries(old) != _retries(new)
        self.counted["accepted"] += max(0, len(came) - len(replaced))
        self._check(group, self._here["ready"] - before["ready"])

    def _count(self, what: str, number: int, message: bytes = b"") -> None:
        if what == "dead":
            what = f"dead:{self._reasons[message]}"
        if what == "back" and self._counts_deliveries:
            what = "redelivered"
        self.counted[what] += number

    def _check(self, group: list[Command], arrived: int) -> None:
        self.totals = Totals.read(self._hashes[self._own + b"totals"])
        present = sum(self._here[place] for place in ("scheduled", "ready", "leased"))
        off = present - present_by(self.totals)
        expected = self._unseen + (0 if self._has_counted else arrived)
        if off != expected and not (self._has_counted and off == 0):
            self.off.append(f"off by {off}, not {expected}: {group!r:.2000}")
        self._unseen = off

    # -- commands

    def _put(self, place: str, message: bytes, number: int) -> None:
        self._moved[place, message] += number

    def _place(self, key: bytes) -> str | None:
        if self._ready.fullmatch(key) or key == self._own + b"quarantined":
            return "ready"
        if key.startswith(self._own + b"leased:"):
            return "leased"
        return "dead" if key == self._own + b"dead" else None

    def _message(self, key: bytes, value: bytes) -> bytes:
        if key == self._own + b"dead":
            found = _DEAD.fullmatch(value)
            assert found is not None, value
            message = found[3][int(found[1] or 0) :]
            for begin, kind in _REASONS.items():
                if re.match(begin, found[2]):
                    self._reasons.setdefault(message, kind)
                    break
            return message
        is_plain = self._ready.fullmatch(key) or value.startswith(b"{")
        return value if is_plain else value.partition(b"\n")[2]

    def _push(self, key: bytes, values: tuple[bytes, ...], *, left: bool) -> None:
        place = self._place(key)
        for value in values if place else ():
            self._lists[key].insert(0 if left else len(self._lists[key]), value)
            self._put("ready", self._message(key, value), 1)

    def _lpush(self, key: bytes, *values: bytes) -> None:
        self._push(key, values, left=True)

    def _rpush(self, key: bytes, *values: bytes) -> None:
        self._push(key, values, left=False)

    def _pop(self, key: bytes, place: int, number: bytes) -> None:
        for _ in range(int(number) if self._place(key) else 0):
            self._put("ready", self._message(key, self._lists[key].pop(place)), -1)

    def _lpop(self, key: bytes, number: bytes = b"1") -> None:
        self._pop(key, 0, number)

    def _rpop(self, key: bytes, number: bytes = b"1") -> None:
        self._pop(key, -1, number)

    def _hset(self, key: bytes, *pairs: bytes) -> None:
        self._counts_deliveries |= key == self._own + b"deliveries"
        self._has_counted |= key == self._own + b"totals"
        for field, value in zip(pairs[::2], pairs[1::2], strict=True):
            old = self._hashes[key].get(field)
            self._hashes[key][field] = value
            place = self._place(key)
            if place and old:
                self._put(place, self._message(key, old), -1)
            if place and value:
                self._put(place, self._message(key, value), 1)
            elif place and old:
                self._replaced.append(self._message(key, old))

    _hsetnx = _hset

    def _hincrby(self, key: bytes, field: bytes, number: bytes) -> None:
        there = int(self._hashes[key].get(field, b"0"))
        self._hset(key, field, b"%d" % (there + int(number)))

    def _hdel(self, key: bytes, *names: bytes) -> None:
        for name in names:
            old = self._hashes[key].pop(name, None)
            if self._place(key) and old:
                self._put(self._place(key) or "", self._message(key, old), -1)

    def _entry(self, name: bytes) -> bytes:
        key = self._own + b"entries"
        return self._message(key, self._hashes[key].get(name, b"\n" + name))

    def _zadd(self, key: bytes, *args: bytes) -> None:
        if key != self._own + b"due":
            return
        flags = {arg.upper() for arg in args if arg.upper() in (b"NX", b"XX", b"GT", b"LT", b"CH")}
        names = args[len(flags) + 1 :: 2]
        for name in names if b"XX" not in flags else ():
            if name not in self._due:
                self._due.add(name)
                self._put("scheduled", self._entry(name), 1)

    def _zrem(self, key: bytes, *names: bytes) -> None:
        for name in self._due.intersection(names) if key == self._own + b"due" else ():
            self._due.discard(name)
            self._put("scheduled", self._entry(name), -1)

    def _del(self, *keys: bytes) -> None:
        for key in keys:
            if key == self._own + b"due":
                self._zrem(key, *self._due)
            self._hdel(key, *self._hashes.get(key, ()))
            self._pop(key, -1, b"%d" % len(self._lists.get(key, ())))

    _unlink = _del
