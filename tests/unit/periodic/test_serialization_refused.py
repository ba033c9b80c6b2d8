"""Forms of schedules that are refused."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from celery.schedules import BaseSchedule, crontab

from celery_delayq.errors import InvalidSchedule, ScheduleNotImportable
from celery_delayq.periodic.schedules import path_of, register, registered
from celery_delayq.periodic.serialization import loads_form
from tests.unit.periodic.test_serialization import HERE, outer, spring_tides, tides

NO_NUMBERS: tuple[Any, ...] = (True, False, None, "5", [5], {})
NO_FORM = "DATA: expected the form of a schedule"
NO_KIND = "DATA: expected every, crontab, solar, clocked, rrule or class"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        *(
            (data, NO_FORM)
            for data in (None, 5, True, "every", "* * * * *", [], ["every", 5], b"\x80")
        ),
        ({}, NO_KIND),
        ({"pickle": "gASVDgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg=="}, NO_KIND),
        ({"py/object": "celery.schedules.crontab"}, NO_KIND),
        ({"__reduce__": ["os.system", ["true"]]}, NO_KIND),
        ({"args": [5], "relative": True}, NO_KIND),
        ({"Every": 5}, NO_KIND),
        *(
            ({"every": every}, f"every {every!r}: expected a number of seconds")
            for every in NO_NUMBERS
        ),
    ],
)
def test_what_is_no_form_of_a_schedule_is_refused(data: Any, text: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        loads_form(data)

    assert str(refused.value) == text.replace("DATA", repr(data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"every": float("nan")}, "ValueError: cannot convert float NaN"),
        ({"every": float("inf")}, "OverflowError: cannot convert float infinity"),
        ({"every": -float("inf")}, "OverflowError: cannot convert float infinity"),
        ({"every": 10**400}, "OverflowError: "),
        ({"every": 1e300}, "OverflowError: "),
        ({"crontab": "* * * *"}, "ValueError: .*: expected minute, hour, day of month"),
        ({"crontab": "* * * * * *"}, "ValueError: .*: expected minute, hour, day of month"),
        ({"crontab": "60 * * * *"}, "ValueError: "),
        ({"crontab": "x * * * *"}, "ValueError: "),
        ({"crontab": " * * * *"}, ": "),
        ({"crontab": 5}, "AttributeError: 'int' object has no attribute 'split'"),
        ({"crontab": None}, "AttributeError: "),
        ({"crontab": ["*", "*", "*", "*", "*"]}, "TypeError: "),
        ({"solar": ["midnight", 1, 2]}, "ValueError: .*midnight"),
        ({"solar": ["sunset", 91, 2]}, "ValueError: .*latitude"),
        ({"solar": ["sunset", 1, -181]}, "ValueError: .*longitude"),
        ({"solar": ["sunset", 1]}, "TypeError: .*missing 1 required positional argument"),
        ({"solar": ["sunset", "north", "east"]}, "TypeError: "),
        ({"solar": 5}, "TypeError: "),
        ({"clocked": "tomorrow"}, "ValueError: Invalid isoformat string: 'tomorrow'"),
        ({"clocked": 5}, "TypeError: fromisoformat: argument must be str"),
        ({"rrule": "FREQ=DAILY", "start": "tomorrow"}, "ValueError: Invalid isoformat"),
        ({"rrule": "FREQ=DAILY", "start": 5}, "TypeError: fromisoformat"),
        ({"class": f"{HERE}:tides"}, "TypeError: .*missing 1 required positional argument"),
        ({"class": f"{HERE}:tides", "args": 5}, "TypeError: "),
        ({"class": f"{HERE}:tides", "args": ["a", "b", "c"]}, "TypeError: "),
        ({"class": f"{HERE}:tides", "args": ["a"], "kwargs": 5}, "TypeError: "),
        ({"class": f"{HERE}:tides", "args": [], "kwargs": {"x": 1}}, "TypeError: "),
    ],
)
def test_a_form_of_something_else_is_refused_with_what_was_wrong(
    data: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidSchedule, match=text) as refused:
        loads_form(data)

    assert str(refused.value).startswith(f"{data!r}: ")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"clocked": "2026-03-02T12:00:00"}, "expected a datetime with a time zone"),
        ({"rrule": 5}, "expected a text"),
        ({"rrule": "FREQ=OFTEN"}, "expected a rule of RFC 5545"),
        ({"rrule": "FREQ=DAILY;INTERVAL=0"}, "expected an INTERVAL of 1 or more"),
        ({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "never matches"),
    ],
)
def test_a_form_of_ours_is_refused_with_what_would_be_right(
    data: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidSchedule, match=text):
        loads_form(data)


@pytest.mark.parametrize(
    "path",
    [
        *("os:system", "os.system", "builtins:eval", "pickle:loads", "pickle:Unpickler", "os"),
        *("datetime:timedelta", "this:zen", "antigravity", "gone.away:tides", "", ":", "a b:c"),
        *("..x:y", f"{HERE}:not_a_schedule", f"{HERE}:a_function", f"{HERE}:an_instance"),
        *(f"{HERE}:unregistered", f"{HERE}.unregistered", f"{HERE}:gone", f"{HERE}:outer.inner"),
    ],
)
def test_what_is_not_registered_is_neither_imported_nor_called(path: str) -> None:
    before = {*sys.modules}

    with pytest.raises(ScheduleNotImportable) as refused:
        loads_form({"class": path, "args": ["1"]})

    assert str(refused.value) == (
        f"{path} is not registered here: let the app do so, by celery_delayq.schedules.register"
    )
    assert {*sys.modules} == before


@pytest.mark.parametrize("kind", [tides, spring_tides, crontab])
def test_a_registered_class_is_read(kind: type[BaseSchedule]) -> None:
    assert register(kind) is kind
    assert registered(path_of(kind)) is kind


@pytest.mark.parametrize("kind", ["a:b", 5, dict, None, tides("Dover"), outer.inner])
def test_what_is_no_class_of_schedules_is_not_registered(kind: Any) -> None:
    with pytest.raises(InvalidSchedule):
        register(kind)


@pytest.mark.parametrize(
    "path", [None, 5, ["os:system"], {}, "shop:make.<locals>.tides", "<lambda>"]
)
def test_a_path_is_that_of_a_class_at_the_top_of_a_module(path: Any) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        loads_form({"class": path, "args": []})

    assert str(refused.value) == (
        f"{path}: expected a class that can be imported; define it at the top of a module"
    )
