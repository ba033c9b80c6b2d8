"""How Lua files become the texts that Redis gets, and how an error of one is traced to its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.scripts import Script, load, with_place

INCLUDE = """\
-- Two functions.
local function used(key)
  return redis.call('GET', key)
end

local function unused()
  return KEYS.nowhere
end
"""
SCRIPT = """\
-- Read values -- of keys.
--
-- KEYS     first
--          others…: the other keys, which are
--            read: too
-- ARGV     name
--          values…
-- Returns  a value
-- Repeat   the same
-- Roles    worker, exporter
-- @include two

local dashes = '--'  -- a text, no comment
for i = FIRST.others, #KEYS do
  used(KEYS[i])
end
return {used(KEYS.first), ARGV.name, FIRST.values}
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Script]:
    """Load a script with that text."""
    monkeypatch.setattr(scripts, "_LUA_FOLDER", tmp_path)
    tmp_path.joinpath("include").mkdir()
    tmp_path.joinpath("include/two.lua").write_text(INCLUDE)

    def of(text: str) -> Script:
        tmp_path.joinpath("read.lua").write_text(text)
        scripts._lines_of.cache_clear()
        return Script("read")

    return of


def test_redis_gets_numbers_and_neither_comments_nor_blanks(
    script: Callable[[str], Script],
) -> None:
    assert script(SCRIPT).source.split("\n") == [
        "-- read.lua: Read values -- of keys.",
        "local function used(key)",
        "return redis.call('GET', key)",
        "end",
        "local dashes = '--'",
        "for i = 2, #KEYS do",
        "used(KEYS[i])",
        "end",
        "return {used(KEYS[1]), ARGV[1], 2}",
    ]


VARIANTS = """\
-- Count.
--
-- KEYS     due
-- ARGV     none
-- Returns  a number
-- Repeat   the same
-- Roles    worker

local DUE = KEYS.due
-- @without limits
local step = 1
-- @end
-- @with limits
local step = 2
-- @end
return redis.call('INCRBY', DUE, step) .. 'DUE'
"""


def test_a_variant_has_its_own_parts_and_keys_are_read_by_their_numbers(
    script: Callable[[str], Script],
) -> None:
    base = script(VARIANTS)
    variant = Script("read+limits")

    end = "return redis.call('INCRBY', KEYS[1], step) .. 'DUE'"
    assert base.source.splitlines()[1:] == ["local step = 1", end]
    assert variant.source.splitlines()[1:] == ["local step = 2", end]
    assert variant.header == base.header


def test_the_header_has_names_and_roles(script: Callable[[str], Script]) -> None:
    header = script(SCRIPT).header

    assert header.keys == ["first", "others…"]
    assert header.args == ["name", "values…"]
    assert header.roles == ["worker", "exporter"]


def test_each_variant_has_a_name() -> None:
    listed = scripts.names_with_variants()
    assert {"leases/ack", "leases/ack+limits"} <= {*listed}
    assert {name.removesuffix("+limits") for name in listed} == {*scripts.names()}


@pytest.mark.parametrize("name", ["KEYS.second", "KEYS.others", "KEYS.name", "FIRST.second"])
def test_a_name_that_the_header_does_not_have_is_refused(
    script: Callable[[str], Script], name: str
) -> None:
    with pytest.raises(ValueError, match=rf"^read\.lua reads {name}, which its header does not"):
        script(SCRIPT.replace("KEYS.first", name))


def test_two_of_one_name_are_refused(script: Callable[[str], Script]) -> None:
    with pytest.raises(ValueError, match=r"^read\.lua has the name first twice"):
        script(SCRIPT.replace("ARGV     name", "ARGV     first"))


@pytest.mark.parametrize(
    "reply",
    [
        "user_script:{0}: attempt to index a nil value script: {1}, on @user_script:{0}.",
        "Error running script (call to f_{1}): @user_script:{0}: user_script:{0}: attempt",
    ],
)
def test_an_error_reply_gets_the_file_and_line_of_the_script(reply: str) -> None:
    acquire = load("leases/acquire")
    file = Path(scripts.__file__).parents[1].joinpath("lua/include/clock.lua")
    line = acquire.source.split("\n").index("local time = redis.call('TIME')") + 1
    place = 1 + file.read_text("utf-8").split("\n").index("  local time = redis.call('TIME')")

    text = reply.format(line, acquire.sha)

    assert with_place(text) == f"{text} (leases/acquire: include/clock.lua:{place})"


def test_other_errors_stay_as_they_are() -> None:
    for text in ("WRONGTYPE", f"script: {'0' * 40}, on @user_script:1."):
        assert with_place(text) == text
