"""Schedules as JSON, and in words."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import InvalidSchedule, ScheduleNotImportable
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import clocked, register
from celery_delayq.periodic.serialization import describe, dumps_form, loads_form
from celery_delayq.utils.text import seconds_of
from tests.support.periodic import BERLIN, NOON, UTC

HERE = __name__
ZONES = st.sampled_from([UTC, BERLIN, ZoneInfo("Pacific/Apia")])


@register
class tides(BaseSchedule):  # noqa: N801 - as Celery's
    """A class of its own, made of JSON."""

    def __init__(self, port: str, hours: Any = 12) -> None:
        super().__init__()
        self.port, self.hours = port, hours

    def __reduce__(self) -> Any:
        return type(self), (self.port, self.hours)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tides) and (self.port, self.hours) == (other.port, other.hours)

    __hash__ = None  # type: ignore[assignment]


@register
class spring_tides(tides):  # noqa: N801
    """A subclass of that."""


@register
class bells(crontab):  # noqa: N801
    """A subclass of Celery's that is made as that is."""


@register
class dusks(solar):  # noqa: N801
    """The same of the sun."""


@register
class moments(clocked):  # noqa: N801
    """The same of ours."""


@register
class recurring(rrule):  # noqa: N801
    """The same of ours."""


class seconds(schedule):  # noqa: N801
    """Celery's __reduce__ says a timedelta, which is no JSON."""


@register
class kept_seconds(schedule):  # noqa: N801
    """One that says JSON."""

    def __reduce__(self) -> Any:
        return type(self), (self.run_every.total_seconds(),)


class otherwise(tides):  # noqa: N801
    """One whose __reduce__ does not say how it was made."""

    def __init__(self, said: Any) -> None:
        super().__init__("Dover")
        self.said = said

    def __reduce__(self) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class outer:  # noqa: N801
    class inner(tides):  # noqa: N801
        pass


class unregistered(BaseSchedule):  # noqa: N801
    """A class that nobody has registered or used."""


class not_a_schedule:  # noqa: N801
    pass


an_instance = tides("Dover")


def a_function() -> BaseSchedule:
    return tides("Dover")


def local() -> BaseSchedule:
    class hidden(tides):  # noqa: N801
        pass

    return hidden("Dover")


def renamed() -> BaseSchedule:
    return type("tides", (tides,), {"__module__": HERE, "__qualname__": "tides"})("Dover")


# -- there and back


@pytest.mark.parametrize(
    ("given_schedule", "form", "words"),
    [
        (schedule(30), {"every": 30}, "every 30s"),
        (schedule(30.0), {"every": 30}, "every 30s"),
        (schedule(0.25), {"every": 0.25}, "every 0.25s"),
        (schedule(5400), {"every": 5400}, "every 1h 30m"),
        (
            schedule(timedelta(days=400, hours=1, milliseconds=1)),
            {"every": 34563600.001},
            "every 400d 1h 0.001s",
        ),
        (schedule(timedelta(days=2)), {"every": 172800}, "every 2d"),
        (
            schedule(timedelta(hours=1), relative=True),
            {"every": 3600, "relative": True},
            "every 1h, rounded",
        ),
        (crontab(), {"crontab": "* * * * *"}, "* * * * *"),
        (crontab(1, 2, 3, 4, 5), {"crontab": "1 2 4 5 3"}, "1 2 4 5 3"),
        (crontab(0, 9, day_of_week="mon-fri"), {"crontab": "0 9 * * mon-fri"}, "0 9 * * mon-fri"),
        (solar("sunrise", 52.5, 13), {"solar": ["sunrise", 52.5, 13]}, "sunrise at 52.5, 13"),
        (
            solar("dusk_civil", -33.868820, 151.0),
            {"solar": ["dusk_civil", -33.86882, 151.0]},
            "dusk_civil at -33.8688, 151",
        ),
        (clocked(NOON), {"clocked": "2026-03-02T12:00:00+00:00"}, "at 2026-03-02T12:00:00+00:00"),
        (
            clocked(datetime(2026, 7, 1, 9, 0, 0, 1, tzinfo=BERLIN)),
            {"clocked": "2026-07-01T09:00:00.000001+02:00"},
            "at 2026-07-01T09:00:00.000001+02:00",
        ),
        (rrule("FREQ=DAILY"), {"rrule": "FREQ=DAILY"}, "FREQ=DAILY"),
        (
            rrule("FREQ=DAILY", datetime(2026, 3, 2, 9)),
            {"rrule": "FREQ=DAILY", "start": "2026-03-02T09:00:00"},
            "FREQ=DAILY",
        ),
        (
            rrule("FREQ=DAILY", NOON),
            {"rrule": "FREQ=DAILY", "start": "2026-03-02T12:00:00+00:00"},
            "FREQ=DAILY",
        ),
    ],
)
def test_a_schedule_has_a_form_that_is_json_and_words(
    given_schedule: BaseSchedule, form: dict[str, Any], words: str
) -> None:
    assert_kept(given_schedule, form, words)


def assert_kept(given_schedule: BaseSchedule, form: dict[str, Any], words: str) -> None:
    assert (dumps_form(given_schedule), describe(given_schedule)) == (form, words)
    again = loads_form(json.loads(json.dumps(form)))
    assert (type(again), again) == (type(given_schedule), given_schedule)
    assert dumps_form(again) == form


@pytest.mark.parametrize(
    ("given_schedule", "args"),
    [
        (tides("Dover", [1, {"a": None}]), ["Dover", [1, {"a": None}]]),
        (spring_tides("Dover"), ["Dover", 12]),
        (kept_seconds(30), [30.0]),
        (bells("*/5", 9), ["*/5", 9, "*", "*", "*"]),
        (dusks("sunset", 1, 2), ["sunset", 1, 2]),
        (recurring("FREQ=DAILY"), ["FREQ=DAILY", None]),
    ],
)
def test_a_class_of_its_own_is_kept_by_its_path_and_arguments(
    given_schedule: BaseSchedule, args: list[Any]
) -> None:
    path = f"{HERE}:{type(given_schedule).__name__}"

    assert_kept(given_schedule, {"class": path, "args": args}, path)


def test_a_class_may_be_made_of_a_moment() -> None:
    form = dumps_form(moments(NOON))

    assert form == {"class": f"{HERE}:moments", "args": [NOON]}
    assert loads_form(form) == moments(NOON)


@given(ms=st.integers(1, 40 * 366 * 86_400_000))
def test_an_interval_of_any_length_is_kept_to_the_ms_and_spelled_as_the_option_every(
    ms: int,
) -> None:
    every = timedelta(milliseconds=ms)
    words = describe(schedule(every))

    assert loads_form(json.loads(json.dumps(dumps_form(schedule(every))))).run_every == every
    assert seconds_of(words.removeprefix("every ")) == pytest.approx(ms / 1000, rel=1e-12)


@given(at=st.datetimes(timezones=ZONES))
def test_a_moment_is_kept_to_the_microsecond(at: datetime) -> None:
    form = dumps_form(clocked(at))
    again = loads_form(form)

    assert dumps_form(again) == form
    assert again.at.replace(tzinfo=None) == at.replace(tzinfo=None)
    assert again.at.utcoffset() == at.utcoffset()


# -- what cannot be kept

ADVICE = r"cannot be kept, its __reduce__ must return \(class, arguments\), the arguments as JSON"


@pytest.mark.parametrize(
    ("given_schedule", "text"),
    [
        (seconds(30), f"{ADVICE}: Object of type timedelta is not JSON serializable"),
        (bells({1, 2}), f"{ADVICE}: Object of type set is not JSON serializable"),
        (tides("Dover", (1, 2)), f"{ADVICE}$"),  # would come back as a list
        (tides("Dover", {1: 2}), f"{ADVICE}$"),  # would come back as text
        (tides("Dover", float("nan")), f"{ADVICE}$"),
        (tides("Dover", object()), f"{ADVICE}: Object of type object is not JSON serializable"),
        (tides("Dover", {"__type__": "x", "__value__": 1}), f"{ADVICE}: "),
        (otherwise((eval, ("1",))), f"{ADVICE}$"),
        (otherwise((tides, ("Dover",))), f"{ADVICE}$"),
        (otherwise("otherwise"), f"{ADVICE}$"),
        (otherwise(RuntimeError("the port is closed")), f"{ADVICE}: the port is closed"),
        (otherwise((otherwise, (1, 2, 3, 4))), r"otherwise.*TypeError: .*__init__\(\) takes"),
        (local(), r"local\.<locals>\.hidden: expected a class that can be imported; define it at"),
        (renamed(), f"{HERE}:tides is another class than that of"),
    ],
)
@pytest.mark.parametrize("tell", [dumps_form, describe])
def test_a_schedule_that_could_not_be_made_anew_is_refused(
    tell: Any, given_schedule: BaseSchedule, text: str
) -> None:
    with pytest.raises(InvalidSchedule, match=text):
        tell(given_schedule)


def gone() -> BaseSchedule:
    return type("gone", (tides,), {"__module__": "gone.away", "__qualname__": "gone"})("Dover")


@pytest.mark.parametrize(
    ("given_schedule", "text"),
    [
        (outer.inner("Dover"), r"outer\.inner: expected a class that can be"),
        (gone(), r"gone\.away:gone: expected a class"),
    ],
)
def test_a_class_that_cannot_be_imported_is_refused(
    given_schedule: BaseSchedule, text: str
) -> None:
    with pytest.raises(ScheduleNotImportable, match=text):
        dumps_form(given_schedule)


@register
class leaving(BaseSchedule):  # noqa: N801
    """A class that exits when it is made."""

    def __init__(self) -> None:
        raise SystemExit("enough")


def test_a_class_that_exits_does_not_take_what_it_is_made_of() -> None:
    with pytest.raises(InvalidSchedule, match="SystemExit: enough"):
        loads_form({"class": f"{HERE}:leaving"})


def test_a_class_may_be_called_with_names() -> None:
    form = {"class": f"{HERE}.tides", "args": ["Dover"], "kwargs": {"hours": 6}}

    assert loads_form(form) == tides("Dover", 6)


@pytest.mark.parametrize("every", ["10", None])
def test_an_interval_that_is_none_is_refused(every: Any) -> None:
    with pytest.raises(InvalidSchedule, match="every"):
        dumps_form(schedule(every))
