"""What is bound is what current_context() says, here and nowhere else, and small."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import json
import logging
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import gevent
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq import DelayQ
from celery_delayq.errors import InvalidContext
from celery_delayq.integration.context import LOG_RECORDS
from celery_delayq.model.context import MAX_BYTES, bound, context, current_context, read
from tests.support import TIMEOUT

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _nothing_stays_bound() -> Iterator[None]:
    assert bound() is None
    yield
    assert bound() is None


# -- binding --------------------------------------------------------------------------------------


def test_nothing_is_bound_at_first() -> None:
    assert current_context() == {}
    assert current_context() is current_context()


def test_inside_each_other_the_inner_value_counts() -> None:
    with context(user="ada", trace="abc") as outer:
        assert outer == current_context() == {"user": "ada", "trace": "abc"}
        with context(user="bob", order=17):
            assert current_context() == {"user": "bob", "trace": "abc", "order": 17}
        assert current_context() == {"user": "ada", "trace": "abc"}
    assert current_context() == {}


def test_none_takes_a_name_away() -> None:
    with context(user="ada", trace="abc", traceparent=PARENT):
        with context(user=None, nobody=None, traceparent=None):
            assert current_context() == {"trace": "abc"}
        assert current_context()["user"] == "ada"


def test_an_error_ends_it_too() -> None:
    with pytest.raises(LookupError), context(user="ada"):
        raise LookupError
    assert current_context() == {}


def test_what_is_bound_cannot_be_changed() -> None:
    roles = ["reader"]
    with context(user="ada", roles=roles):
        roles.append("admin")
        with pytest.raises(TypeError):
            current_context()["user"] = "bob"  # type: ignore[index]
        assert current_context() == {"user": "ada", "roles": ["reader"]}


def test_it_is_for_any_number_of_times() -> None:
    ada = context(user="ada")
    with ada, context(user="bob"):
        with ada:
            assert current_context() == {"user": "ada"}
        assert current_context() == {"user": "bob"}


def test_a_name_may_be_one_that_python_uses_itself() -> None:
    with DelayQ().context(self="me", **{"order.id": 1}):
        assert current_context() == {"self": "me", "order.id": 1}


def test_left_in_another_order_nothing_stays() -> None:
    first, second = context(user="ada"), context(order=17)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert current_context() == {}
    second.__exit__(None, None, None)
    assert current_context() == {}


def test_left_elsewhere_it_stays_here() -> None:
    ada = context(user="ada")
    with ada:
        contextvars.Context().run(ada.__exit__, None, None, None)
        assert current_context() == {"user": "ada"}


# -- threads and their like -----------------------------------------------------------------------


def test_each_thread_has_its_own() -> None:
    meet = threading.Barrier(8)

    @context(shared=True)
    def look(n: int) -> Any:
        before = current_context()
        with context(n=n):
            meet.wait(TIMEOUT)
            during = current_context()
        return before, during

    with context(user="of the main thread"), ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(look, range(8)))

    assert seen == [({"shared": True}, {"shared": True, "n": n}) for n in range(8)]


def test_each_greenlet_has_its_own() -> None:
    def look(n: int) -> Any:
        with context(n=n):
            gevent.sleep(0)
            return current_context()

    assert [job.get() for job in [gevent.spawn(look, n) for n in range(8)]] == [
        {"n": n} for n in range(8)
    ]


def test_each_asyncio_task_has_its_own_over_that_of_its_parent() -> None:
    @context(deep=True)
    async def look(n: int) -> Any:
        with context(n=n):
            await asyncio.sleep(0)
            return current_context()

    async def main() -> list[Any]:
        with context(user="ada"):
            seen = await asyncio.gather(*map(look, range(8)))
            assert current_context() == {"user": "ada"}
            return seen

    assert asyncio.run(main()) == [{"user": "ada", "deep": True, "n": n} for n in range(8)]


def test_a_decorated_function_keeps_its_name_and_result() -> None:
    @context(user="ada")
    def look(suffix: str = "") -> str:
        """Say who."""
        return f"{current_context()['user']}{suffix}"

    assert (look("!"), look.__name__, look.__doc__) == ("ada!", "look", "Say who.")


def test_what_cannot_be_decorated_is_refused() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> Any:
        yield 1

    @Celery("app", set_as_current=False).task
    def task() -> None:
        pass

    for function in (numbers, later):
        with pytest.raises(InvalidContext, match="a generator"):
            context(user="ada")(function)
    with pytest.raises(InvalidContext, match=r"put it below @app\.task"):
        context(user="ada")(task)


# -- bad input ------------------------------------------------------------------------------------


#: Some that JSON does not know, and some that would come out of it as something else.
UNKNOWN = [b"bytes", {1, 2}, object(), dt.datetime(2030, 1, 1), Decimal("1.1"), math.nan, math.inf]
CHANGED = [(1, 2), [math.nan], {1: "a number for a name"}, {"a": {None: 1}}, "\ud800", ["\udfff"]]


@pytest.mark.parametrize("value", [*UNKNOWN, *CHANGED], ids=lambda value: type(value).__name__)
def test_a_value_that_is_no_json_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidContext, match=r"^context thing=.*expected JSON"):
        context(user="ada", thing=value)


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, deep):
        with pytest.raises(InvalidContext, match="context thing="):
            context(thing=value)


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a=b", 'a"', "1a", "-", "ü", "a\n", "a" * 101, "a\x00"]
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidContext, match="expected letters"):
        context(**{name: 1})


def test_a_trace_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidContext, match="traceparent=5: expected the text of that header"):
        context(traceparent=5)


@pytest.mark.parametrize("character", ["a", "ü", "\U0001f600", '"'])
def test_what_is_too_large_is_refused_to_the_byte(character: str) -> None:
    each = len(json.dumps(character, ensure_ascii=False).encode()) - 2
    room = MAX_BYTES - len('{"text":""}')
    fits = character * (room // each) + "x" * (room % each)
    with context(text=fits):
        assert current_context() == {"text": fits}
    with pytest.raises(InvalidContext, match=f"of {MAX_BYTES + 1} bytes, of which text has the"):
        context(text=fits + "x")


def test_what_is_too_large_together_is_refused() -> None:
    half = "x" * 2100
    with context(one=half, small=1), pytest.raises(InvalidContext, match="expected at most 4096"):
        context(two=half).__enter__()
    with context(one=half), context(one=None, two=half):
        assert current_context() == {"two": half}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Lone surrogates are no text.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-zA-Z0-9_.-]{0,9}", fullmatch=True), JSON, max_size=4)
)
def test_what_is_read_is_what_was_bound(values: dict[str, Any]) -> None:
    values = {name: value for name, value in values.items() if value is not None}
    with context(**values):
        state = bound()
        assert state is not None
        assert current_context() == values
        if values:
            assert read(state.encoded.text) == state.encoded
            assert json.loads(state.encoded.text) == values


NO_TEXTS = [None, 17, {"user": "ada"}, ["user"]]
NO_OBJECTS = ["", "user", "[]", "null", "[" * 4000]
NO_VALUES = ['{"user": NaN}', '{"user": 1e999}', '{"user": "\\ud800"}']
NO_NAMES = ['{"a b": 1}', '{"": 1}', '{"traceparent": "x"}']
TOO_LARGE = [f'{{"user": "{"x" * MAX_BYTES}"}}', f'{{"user": "{"ü" * 3000}"}}']


@pytest.mark.parametrize(
    "given",
    [*NO_TEXTS, *NO_OBJECTS, *NO_VALUES, *NO_NAMES, *TOO_LARGE],
    ids=lambda given: repr(given)[:20],
)
def test_what_is_no_context_is_not_read_as_one(given: Any) -> None:
    with pytest.raises(InvalidContext):
        read(given)


# -- log records ----------------------------------------------------------------------------------


def line() -> str:
    """Return what a log record says now."""
    LOG_RECORDS.make()
    record = logging.makeLogRecord({})
    return logging.Formatter("%(delayq_context)s").format(record)


@pytest.fixture
def _factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


pytestmark = pytest.mark.usefixtures("_factory")


def test_a_log_record_says_what_is_bound() -> None:
    assert line() == ""
    with context(user="ada", trace="abc", n=1, roles=["a"], ok=True, where="Zürich"):
        assert line() == 'user=ada trace=abc n=1 roles=["a"] ok=true where=Zürich'
    with context(traceparent=PARENT, tracestate="congo=t61r"):
        assert line() == f"traceparent={PARENT}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nERROR forged", r'"a\nERROR forged"'),
        ("ada admin=true", '"ada admin=true"'),
        ("a=b", '"a=b"'),
        ('a"b', r'"a\"b"'),
        ("", '""'),
        ("\x1b[2J\x7f\x85", r'"\u001b[2J\u007f\u0085"'),
        ("\u2028\u202e", r'"\u2028\u202e"'),
        ({"a": "\u2028\r"}, r'{"a": "\u2028\r"}'),
        ("100%(levelname)s", "100%(levelname)s"),
    ],
)
def test_nobody_can_forge_a_log_line(value: Any, shown: str) -> None:
    with context(user=value):
        assert line() == f"user={shown}"


def test_a_log_line_has_an_end() -> None:
    with context(user="x" * 4000):
        assert len(line()) == 500
        assert line().endswith("x…")


def test_log_records_are_changed_once_however_often_it_is_asked_for() -> None:
    LOG_RECORDS.make()
    first = logging.getLogRecordFactory()
    DelayQ(Celery("app", set_as_current=False))
    assert logging.getLogRecordFactory() is first

    def others(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = first(*args, **kwargs)
        record.others = True
        return record

    logging.setLogRecordFactory(others)
    LOG_RECORDS.make()
    assert logging.getLogRecordFactory() is others
    with context(user="ada"):
        assert line() == "user=ada"


def test_the_record_factory_from_before_is_kept() -> None:
    class Record(logging.LogRecord):
        pass

    logging.setLogRecordFactory(Record)
    with context(user="ada"):
        assert line() == "user=ada"
        assert isinstance(logging.makeLogRecord({}), Record)
