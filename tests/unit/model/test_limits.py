"""Limits: what is valid, which lane a call has, and which task has which limit."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from celery import Celery, Task

from celery_delayq import DelayQ, Limit
from celery_delayq.errors import InvalidLimit
from celery_delayq.model.limits import Definition
from celery_delayq.model.limits.lanes import next_start_us
from celery_delayq.model.limits.of_app import AppLimits, LimitedTask, limits_of


def stripe(**options: Any) -> Limit:
    return Limit("stripe", **options)


# -- the definition


@pytest.mark.parametrize(
    ("rate", "interval"),
    [
        ("100/m", "600000"),
        ("10/s", "100000"),
        ("5/h", "720000000"),
        ("1/d", "86400000000"),
        ("0.5/s", "2000000"),
        (".5", "2000000"),
        (" 10 / m ", "6000000"),
        (4, "250000"),
        (0.5, "2000000"),
        ("3/s", "333333.3333333333"),
        (1_000_000, "1"),
    ],
)
def test_a_rate_is_the_time_between_two_tasks(rate: Any, interval: str) -> None:
    definition = stripe(rate=rate).definition

    assert definition.text == f"{interval} 1 0 0"
    assert Definition.parse(definition.text) == definition


def test_the_definition_has_all_numbers() -> None:
    limit = stripe(rate="100/m", burst=20, concurrency=8, key="{customer}", fair=True)

    assert limit.definition.text == "600000 20 8 1"
    assert stripe(concurrency=8).definition.text == "0 1 8 0"
    assert stripe(fair=True, key="{0}").definition.text == "0 1 0 1"


@pytest.mark.parametrize(
    "rate",
    [
        *("0/s", "0", 0, -1, "-1/s", "1/x", "1/ms", "", "/s", "s", "1/", "fast", "1e3/s", "٣/s"),
        *("nan", "nan/s", math.nan, math.inf, True, b"1/s", [1], 1_000_001, "1000001/s", "0.001/d"),
    ],
)
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidLimit, match="expected") as caught:
        stripe(rate=rate)

    assert f"Limit('stripe'): rate={rate!r}: " in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", 1_000_001, math.nan])
def test_a_number_of_tasks_is_a_whole_one_from_1(value: Any) -> None:
    for option in ("burst", "concurrency"):
        with pytest.raises(InvalidLimit, match="expected a whole number from 1") as caught:
            stripe(rate=1, **{option: value})
        assert f"Limit('stripe'): {option}={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "nothing is limited; give rate="),
        ({"key": "{customer}"}, "nothing is limited"),
        ({"burst": 2, "concurrency": 1}, "burst=2 without rate="),
        ({"rate": 1, "key": 5}, "key=5: expected a template"),
        ({"rate": 1, "key": "{customer"}, r"key='{customer' of Limit\('stripe'\) cannot be read"),
        ({"rate": 1, "key": " "}, r"key=' ' of Limit\('stripe'\) is an empty text; expected a"),
        ({"rate": 1, "fair": 1}, "fair=1: expected True or False"),
    ],
)
def test_options_that_make_no_limit_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidLimit, match=match):
        stripe(**options)


@pytest.mark.parametrize("name", ["", "  ", None, 5, "\ud800", "é" * 40])
def test_a_name_is_a_text_that_fits_into_a_lane(name: Any) -> None:
    with pytest.raises(InvalidLimit, match="expected"):
        Limit(name, rate=1)


def test_limits_are_equal_by_what_they_do() -> None:
    assert stripe(rate="60/m") == stripe(rate="1/s") == stripe(rate=1)
    assert hash(stripe(rate="60/m")) == hash(stripe(rate=1))
    others = [
        *(stripe(rate=1, key="{0}"), stripe(rate=1, burst=2), Limit("paypal", rate=1)),
        *(
            stripe(rate=1, concurrency=1),
            stripe(rate=1, fair=True),
            stripe(concurrency=1),
            "stripe",
        ),
    ]
    assert all(stripe(rate=1) != other for other in others)
    assert pickle.loads(pickle.dumps(stripe(rate=1, key="{0}"))) == stripe(rate=1, key="{0}")


def test_a_limit_cannot_be_changed() -> None:
    limit = stripe(rate=1)
    with pytest.raises(AttributeError):
        limit.rate = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        *("", "none", "1", "1 1 1", "1 1 1 2", "1 1 1 1 1", "x 1 1 1", "1 0 1 1", "1 1 -1 1"),
        *("-1 1 1 1", "nan 1 1 1", "inf 1 1 1", "1 1.5 1 1", "1  1 1 1"),
    ],
)
def test_another_text_is_no_definition(text: str) -> None:
    assert Definition.parse(text) is None


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        *(("100/m", "100/m"), ("10/s", "10/s"), ("5/h", "5/h"), ("1/d", "1/d"), (4, "4/s")),
        *(("90/m", "90/m"), ("0.5/s", "30/m"), ("3/s", "3/s"), ("0.4/d", "0.4/d"), (None, None)),
        *(("7.7/s", "462/m"), (3.14159, "3.14159/s")),
    ],
)
def test_a_definition_shows_its_rate(rate: Any, shown: str | None) -> None:
    assert stripe(rate=rate, concurrency=1).definition.rate == shown


# -- lanes


class Pay(Task):
    name = "shop.pay"

    def run(self, customer: str, /, amount: int = 5, *rest: Any, **more: Any) -> None:
        """Stand for any task."""


def lane(key: Any, *args: Any, **kwargs: Any) -> str:
    return stripe(rate=1, key=key).lane_of("shop.pay", Pay(), args, kwargs)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, ""),
        ("{customer}", "c1"),
        ("{0}", "c1"),
        ("{customer}:{amount}:{region}", "c1%3A5%3Aeu"),
        (lambda customer, **_: customer.upper(), "C1"),
        ("all of them\0", "all%20of%20them%00"),
    ],
)
def test_a_key_is_made_of_the_arguments(key: Any, expected: str) -> None:
    assert lane(key, "c1", region="eu") == f"stripe:{expected}"


def test_a_long_key_is_stored_as_its_hash() -> None:
    found = {lane("{customer}", text) for text in ("é" * 34, "x" * 201, "x" * 10_000)}

    assert {len(each) for each in found} == {len("stripe:") + 64}
    assert len(found) == 3
    assert lane("{customer}", "x" * 200) == f"stripe:{'x' * 200}"


def test_the_name_of_a_lane_can_be_told_from_its_key() -> None:
    limit = Limit("a:b c/d", rate=1, key="{0}")

    assert limit.lane_of("t", None, ["x:y"], {}) == "a%3Ab%20c/d:x%3Ay"
    assert Limit("all", rate=1).lane_of("t", None, [], {}) == "all:"


def test_an_error_shows_the_begin_of_large_arguments() -> None:
    with pytest.raises(InvalidLimit, match="no argument has the name 'nobody'") as caught:
        lane("{nobody}", "c1", region="x" * 1_000_000)

    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("{nobody}", "cannot be computed from args=.*no argument has the name 'nobody'"),
        ("{5}", "cannot be computed"),
        (lambda: "k", "failed for args="),
        (lambda *_, **__: None, "returned None, not a text"),
        ("{more}", "cannot be computed"),
        (lambda *_, **__: " ", "is an empty text"),
        (lambda *_, **__: "\ud800", "expected a text that UTF-8 can hold"),
    ],
)
def test_a_call_without_a_key_is_refused(key: Any, match: str) -> None:
    with pytest.raises(InvalidLimit, match=match) as caught:
        lane(key, "c1")

    assert str(caught.value).startswith(f"shop.pay: key={key!r} of Limit('stripe') ")


# -- of an app


@pytest.fixture
def app() -> Celery:
    app = Celery("app", broker="memory://", set_as_current=False)
    app.conf.task_acks_late = True
    return app


def task_of(app: Celery, name: str, **options: Any) -> Any:
    def run(customer: str = "c1") -> None:
        """Stand for any task."""

    app.task(name=name, shared=False, **options)(run)
    return app.tasks[name]


def limit_of(app: Celery, name: str) -> Limit | None:
    found = limits_of(app).of(name, app.tasks.get(name))
    return None if found is None else found.limit


def test_the_limit_of_a_task_wins_over_patterns_and_the_first_pattern_counts(app: Celery) -> None:
    mail, rest = Limit("mail", rate=1), Limit("rest", rate=2)
    DelayQ(app, limits={"shop.mail.*": mail, "shop.*": rest})
    task_of(app, "shop.mail.own", limit=stripe(rate=3))
    task_of(app, "shop.mail.none", limit=False)
    task_of(app, "shop.mail.any")
    task_of(app, "elsewhere")

    assert limit_of(app, "shop.mail.own") == stripe(rate=3)
    assert limit_of(app, "shop.mail.none") is None
    assert limit_of(app, "shop.mail.any") is mail
    assert limit_of(app, "shop.not_here") is rest
    assert limit_of(app, "elsewhere") is None
    assert set(limits_of(app).of_tasks(app.tasks)) == {"shop.mail.own", "shop.mail.any"}
    assert limits_of(app).definitions(app.tasks) == {
        "stripe": "333333.3333333333 1 0 0",
        "mail": "1000000 1 0 0",
        "rest": "500000 1 0 0",
    }


def test_a_pattern_holds_for_none_of_celerys_own_tasks(app: Celery) -> None:
    DelayQ(app, limits={"*": stripe(rate=1)})
    task_of(app, "shop.mail")

    limited = limits_of(app).of_tasks(app.tasks)
    assert "shop.mail" in limited
    assert [name for name in limited if name.startswith("celery.")] == []


def test_a_method_named_limit_is_no_limit(app: Celery) -> None:
    class Own(Task):
        def limit(self) -> int:
            return 5

    DelayQ(app)
    task_of(app, "shop.mail", base=Own)

    assert limits_of(app).of_tasks(app.tasks) == {}


@pytest.mark.parametrize("limit", [5, "100/m", Limit, True])
def test_another_value_is_no_limit_of_a_task(app: Celery, limit: Any) -> None:
    DelayQ(app)
    task = task_of(app, "shop.mail", limit=limit)

    with pytest.raises(InvalidLimit, match=r"task shop\.mail: limit=.*: expected a Limit"):
        limits_of(app).of("shop.mail", task)


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({"a": 5}, r"limits=\{'a': …\}: limit=5: expected a Limit"),
        ({"": stripe(rate=1)}, "expected a pattern such as"),
        (stripe(rate=1), "expected limits by a pattern of task names"),
        (
            {"a": stripe(rate=1), "b": stripe(rate=2)},
            r"two limits have the name 'stripe': Limit\(.*rate=1.* of limits=\{'a': …\}, and "
            r"Limit\(.*rate=2.* of limits=\{'b': …\}",
        ),
    ],
)
def test_limits_by_pattern_are_checked_at_once(limits: Any, match: str) -> None:
    with pytest.raises(InvalidLimit, match=match):
        DelayQ(limits=limits)


def test_two_definitions_under_one_name_are_refused(app: Celery) -> None:
    DelayQ(app, limits={"shop.*": stripe(rate=1)})
    first = task_of(app, "a", limit=stripe(rate=1, key="{customer}"))
    other = task_of(app, "b", limit=stripe(rate=2))

    # Tasks that name their arguments differently may share a limit.
    assert limits_of(app).of("a", first) == LimitedTask("a", first, first.limit)
    with pytest.raises(InvalidLimit, match=r"task b: two limits have the name 'stripe': .*shop"):
        limits_of(app).of("b", other)
    with pytest.raises(InvalidLimit, match="two limits"):
        limits_of(app).of_tasks(app.tasks)


def test_concurrency_needs_late_acknowledgement(app: Celery) -> None:
    limit = stripe(concurrency=2)
    early = LimitedTask("a", task_of(app, "a", acks_late=False), limit)

    with pytest.raises(InvalidLimit, match=r"task a acknowledges when it starts.*at_least_once"):
        early.check()
    LimitedTask("b", task_of(app, "b"), limit).check()
    LimitedTask("c", None, limit).check()
    LimitedTask("a", early.task, stripe(rate=1)).check()


def test_names_of_many_tasks_are_not_kept_for_ever() -> None:
    limits = AppLimits({"a*": stripe(rate=1)})
    for number in range(10_001):
        assert limits.of(f"b{number}", None) is None

    assert limits.of("a1", None) == LimitedTask("a1", None, stripe(rate=1))
    assert len(limits._by_name) < 10


@pytest.mark.parametrize(
    ("definition", "used", "slots", "expected"),
    [
        (Definition(0.0, 1, 0, True), 50, 0.0, 9),
        (Definition(0.0, 1, 3, False), 1, 0.0, 2),
        (Definition(0.0, 1, 3, False), 4, 0.0, 0),
        (Definition(1e6, 1, 0, False), 0, 0.0, 1),
        (Definition(1e6, 1, 0, False), 0, 0.5, 0),
        (Definition(1e6, 5, 0, False), 0, 2.0, 3),
        (Definition(1e6, 5, 0, False), 0, 2.1, 2),
        (Definition(1e6, 5, 0, False), 0, -9.0, 5),
        (Definition(1e6, 5, 2, False), 1, 1.0, 1),
        (Definition(1e6, 50, 20, False), 0, 0.0, 9),
    ],
)
def test_as_many_may_go_as_permits_and_slots_are_free(
    definition: Definition, used: int, slots: float, expected: int
) -> None:
    now = 5_000_000

    assert definition.may_go(9, used, now + slots * 1e6, now) == expected


@pytest.mark.parametrize("interval_us", [0.0, 1e6, 1260.5])
@pytest.mark.parametrize("burst", [1, 5])
@pytest.mark.parametrize("concurrency", [0, 3])
def test_the_next_start_is_now_where_a_task_may_go(
    interval_us: float, burst: int, concurrency: int
) -> None:
    definition, now = Definition(interval_us, burst, concurrency, False), 5_000_000
    for used in (0, 2, 3, 4):
        for slots in (-9.0, 0.0, 0.5, 1.0, 3.9, 4.0, 4.1, 99.0):
            until = now + slots * interval_us
            next_us = definition.next_us(used, until, now)

            assert (next_us == now) is (definition.may_go(9, used, until, now) > 0), (used, slots)
            assert math.isinf(next_us) is (concurrency > 0 and used >= concurrency)
            if math.isfinite(next_us):
                assert now <= next_us <= now + interval_us


@pytest.mark.parametrize(
    ("definition", "used", "next_try", "expected"),
    [
        (Definition(0.0, 1, 1, False), 1, -30.0, math.inf),  # busy workers try no lane
        (Definition(0.0, 1, 1, False), 1, 30.0, math.inf),
        (Definition(0.0, 1, 1, False), 0, math.inf, 0.0),  # a permit came back
        (Definition(0.0, 1, 1, False), 0, -30.0, 0.0),
        (Definition(0.0, 1, 1, False), 0, 30.0, 30.0),
        (None, 9, math.inf, 0.0),
        (None, 9, -30.0, 0.0),
    ],
)
def test_the_next_start_of_a_lane_follows_its_permits_rather_than_its_next_try(
    definition: Definition | None, used: int, next_try: float, expected: float
) -> None:
    now = 5_000_000

    assert next_start_us(definition, used, 0.0, now + next_try, now) == now + expected


def test_slots_are_counted_in_half_microseconds_as_scripts_do() -> None:
    """Ninety-nine slots of 1260.5 µs are used: the hundredth is free."""
    definition = Definition(1260.08, 100, 0, False)

    assert definition.may_go(9, 0, 5_000_000 + 99 * 1260.5, 5_000_000) == 1


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        (Definition(600_000, 20, 8, True), "100/m, burst 20, 8 at once, fair"),
        (Definition(0.0, 1, 1000, False), "1,000 at once"),
        (Definition(0.0, 1, 0, False), "no limit"),
    ],
)
def test_a_definition_is_shown(definition: Definition, text: str) -> None:
    assert str(definition) == text
