"""Each script's header says what its caller in ``store.py`` passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from celery_delayq import scripts
from celery_delayq.keys import Keys, Layout
from celery_delayq.message import Due, Entry, Record
from celery_delayq.store import Held, Store

TO = "q"
DATA = Record(3, "nonce", "task", b"{}").pack()
ENTRY = Entry("id", Due(5), 3, DATA)


def ready(store: Store) -> object:
    call = store.ready_call("q")
    call.add(3, b"{}")
    return store.run(call)


#: One call of each script, and the reply that its caller is to make sense of.
CALLS: dict[str, tuple[Callable[[Store], object], Any]] = {
    "schedule": (lambda s: s.schedule(TO, ENTRY), [5, b"s"]),
    "promote": (lambda s: s.promote(TO, Layout(), 100), [5, b"", b"", 1, 0]),
    "agenda": (lambda s: s.agenda(), [5, b"q", b"7", b"q"]),
    "ready": (ready, 1),
    "reserve": (lambda s: s.leases.reserve("q", "me", 30.0, "1", 5), [0, b"0", b"{}", b""]),
    "ack": (lambda s: s.leases.ack("q", "me", ["1:1"]), 1),
    "beat": (lambda s: s.leases.beat("q", "me", 30.0), 1),
    "requeue": (lambda s: s.leases.requeue("q", "me", ["1:1"]), [1, 0]),
    "reject": (lambda s: s.leases.reject("q", "me", "1:1", "id", "why"), 1),
    "retry": (lambda s: s.leases.retry(TO, ENTRY, TO, "me", "1:1", hand_out=True), b"ready"),
    "reap": (lambda s: s.leases.reap(TO, Layout(), "me", 100, 5), [b"0", 1, 0, 0]),
    "defer": (lambda s: s.defer("q", 1.0), [5, b"q", b"7"]),
    "sizes": (lambda s: s.sizes("q", Layout()), [5, 1, 1, b"7", 0, 0]),
    "clear": (lambda s: s.clear("q"), [3, 1]),
    "adopt": (lambda s: s.adopt(TO, ENTRY, Held("u", "ui", "tag")), b"gone"),
    "release": (lambda s: s.release(TO, Layout(), "id", DATA, b"{}"), 1),
    "bury": (lambda s: s.bury("q", "id", "reason", b"{}"), 1),
}


class Recorder:
    """Stands for a client: keeps the command and gives the prepared reply."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.keys: list[str] = []
        self.args: list[Any] = []

    def execute_command(self, _name: str, _sha: str, count: int, *rest: Any) -> Any:
        self.keys, self.args = list(rest[:count]), list(rest[count:])
        return self.reply


def header(name: str, part: str) -> tuple[int, bool]:
    """Return how many items a part of the header numbers, and whether more may follow."""
    text = files("celery_delayq").joinpath("lua", f"{name}.lua").read_text()
    match = re.search(rf"^-- {part} +(.*?)(?=^-- (?:ARGV|Returns))", text, re.M | re.S)
    assert match, f"{name}.lua has no {part} in its header"
    numbers = [int(n) for n in re.findall(r"(?:^|  |-- +)(\d+)…? ", match[1])]
    assert numbers == list(range(1, len(numbers) + 1)), f"{name}.lua {part}: {numbers}"
    return len(numbers), "…" in match[1]


def test_every_script_has_a_call_here() -> None:
    assert sorted(CALLS) == scripts.names()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_call_passes_what_the_header_says(name: str) -> None:
    call, reply = CALLS[name]
    recorder = Recorder(reply)
    call(Store(recorder, Keys(), Layout()))

    for part, given in (("KEYS", recorder.keys), ("ARGV", recorder.args)):
        expected, more = header(name, part)
        if more:
            assert len(given) >= expected
        else:
            assert len(given) == expected


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_header_says_what_it_returns_and_what_a_repeat_does(name: str) -> None:
    text = files("celery_delayq").joinpath("lua", f"{name}.lua").read_text()

    assert re.search(r"^-- Returns  \S", text, re.M)
    assert re.search(r"^-- Repeat   \S", text, re.M)
