"""All code reads Redis' clock in one place, and only a test can replace it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_delayq
from celery_delayq.errors import TravelError
from celery_delayq.store.scripting import clock, scripts
from celery_delayq.store.scripting.calls import Call, Command

PACKAGE = Path(celery_delayq.__file__).parent
LUA = PACKAGE / "store" / "lua"
#: A call of TIME in Lua, and the ways to send TIME from Python.
TIME_IN_LUA = re.compile(r"""['"]time['"]""", re.IGNORECASE)
TIME_IN_PYTHON = re.compile(r"""['"]TIME['"]|(?:client|pipe|redis|connection)\.time\(\)""")
#: What the variant adds to `now_us`.
PART_OF_TRAVEL = (
    "local set_by_test = redis.call('LRANGE', 'delayq:test_clock', 0, 1)",
    "if not set_by_test[2] then",
    "error('NOTESTCLOCK delayq_time moves the clock of another Redis, or this one was emptied', 0)",
    "end",
    "time = set_by_test",
)


@pytest.fixture
def moved() -> Iterator[None]:
    clock.use_test_clock(on=True)
    yield
    clock.use_test_clock(on=False)


def lines_with(pattern: re.Pattern[str], folder: Path, suffix: str) -> list[str]:
    return [
        f"{file.relative_to(folder)}: {line.strip()}"
        for file in sorted(folder.rglob(f"*.{suffix}"))
        for line in file.read_text("utf-8").splitlines()
        if pattern.search(line)
    ]


def test_one_function_in_lua_reads_the_clock() -> None:
    found = lines_with(TIME_IN_LUA, LUA, "lua")

    assert found == ["include/clock.lua: local time = redis.call('TIME')"]


def test_one_function_in_python_reads_the_clock() -> None:
    found = lines_with(TIME_IN_PYTHON, PACKAGE, "py")

    found = [line for line in found if not line.startswith("spark/")]  # a type of options
    assert found == ['store/scripting/clock.py: return Command.of("TIME")']


@pytest.mark.parametrize("name", scripts.names_with_variants())
def test_a_clock_of_a_test_changes_no_script_of_production(name: str) -> None:
    script, variant = scripts.Script(name), scripts.Script(name + scripts.TRAVEL)
    reads_clock = "redis.call('TIME')" in script.source

    assert clock.TEST_CLOCK not in script.source
    assert (clock.TEST_CLOCK in variant.source) == reads_clock
    assert scripts.load(name).sha == script.sha
    assert variant.header == script.header
    without = variant.source.replace("\n".join(PART_OF_TRAVEL) + "\n", "")
    assert without.split("\n")[1:] == script.source.split("\n")[1:]


def test_all_calls_use_the_variants_while_a_test_moves_the_clock(moved: None) -> None:
    call = Call("leases/acquire+limits", [], [])

    assert call.script.name == "leases/acquire+limits+travel"
    assert call.script.sha.encode() in call.packed()
    assert clock.time_command() == Command.of("LRANGE", clock.TEST_CLOCK, 0, 1)
    clock.use_test_clock(on=False)
    assert call.script.name == "leases/acquire+limits"
    assert call.script.sha.encode() in call.packed()
    assert clock.time_command() == Command.of("TIME")


def test_the_reply_of_each_kind_is_read() -> None:
    assert clock.clock_us((1_700_000_000, 5)) == 1_700_000_000_000_005
    assert clock.clock_us([b"1700000000", b"000005"]) == 1_700_000_000_000_005
    with pytest.raises(TravelError, match="NOTESTCLOCK delayq_time moves the clock of another"):
        clock.clock_us([])
