"""Which messages a search by argument finds."""

from __future__ import annotations

import base64
import functools
import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Celery
from kombu import serialization
from kombu.compression import compress

from celery_delayq import Filter
from celery_delayq.errors import InvalidFilter
from celery_delayq.model.arguments.search import ArgumentSearch, TypedValue, argument_names

NOON = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)
ORDER = UUID("0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5")


def plain(order_id: Any, note: Any = "none") -> None:
    """Stand for any task."""


def bound(self: Any, order_id: Any) -> None:
    """Stand for a task with ``bind=True``."""


def more(first: Any, *order_id: Any, **options: Any) -> None:
    """Stand for a task that takes any arguments."""


def by_name(*, order_id: Any) -> None:
    """Stand for a task without positional arguments."""


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> None:
    """Keeps the signature of the task in it."""


def hidden(*args: Any, **kwargs: Any) -> None:
    """Hides the signature of the task in it."""


@pytest.fixture(scope="module")
def tasks() -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    for function in (plain, more, by_name, wrapped, hidden):
        app.task(name=function.__name__ if function is not wrapped else "wrapped", shared=False)(
            function
        )
    app.task(name="bound", bind=True, shared=False)(bound)
    app.task(name="retrying", autoretry_for=(OSError,), shared=False)(plain)
    return app.tasks


def message(
    args: Any, kwargs: Any, task: str = "plain", serializer: str = "json", packs: bool = False
) -> dict[str, Any]:
    content_type, encoding, body = serialization.dumps((args, kwargs, {}), serializer)
    headers: dict[str, Any] = {"task": task, "id": "one"}
    properties: dict[str, Any] = {}
    if packs:
        body, headers["compression"] = compress(body, "zlib")
    if isinstance(body, bytes):
        body, properties["body_encoding"] = base64.b64encode(body).decode(), "base64"
    return {
        "body": body,
        "content-type": content_type,
        "content-encoding": encoding,
        "headers": headers,
        "properties": properties,
    }


def finds(tasks: Any, wanted: dict[str, Any], told: dict[str, Any]) -> bool | None:
    given = Filter(arg=wanted).arg
    assert given is not None
    return ArgumentSearch(given, tasks).matches(told)


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "found"),
    [
        ("plain", (42,), {}, True),
        ("plain", (), {"order_id": 42}, True),
        ("plain", (7,), {}, False),
        ("plain", (), {}, False),
        ("plain", (7, 42), {}, False),
        ("retrying", (42,), {}, True),
        ("wrapped", (42,), {}, True),
        ("bound", (42,), {}, True),
        ("by_name", (), {"order_id": 42}, True),
        ("more", (42,), {}, False),
        ("more", (1, 42), {}, None),
        ("more", (1,), {"order_id": 42}, True),
        ("hidden", (42,), {}, None),
        ("hidden", (), {"order_id": 42}, True),
        ("hidden", (), {"order_id": 7}, False),
        ("shop.gone", (42,), {}, None),
        ("shop.gone", (), {"order_id": 42}, True),
        ("shop.gone", (), {}, False),
    ],
)
def test_an_argument_has_its_name(
    tasks: Any, task: str, args: Any, kwargs: Any, found: bool | None
) -> None:
    told = message(args, kwargs, task)

    assert finds(tasks, {"order_id": 42}, told) is found
    if args:
        assert finds(tasks, {"0": args[0]}, told) is True
        assert finds(tasks, {"0": "other"}, told) is False
    assert finds(tasks, {"7": 42}, told) is False


def test_all_arguments_must_be_equal(tasks: Any) -> None:
    told = message((42,), {"note": "late"})

    assert finds(tasks, {"order_id": 42, "note": "late"}, told) is True
    assert finds(tasks, {"order_id": 42, "note": "early"}, told) is False
    assert finds(tasks, {"order_id": 42, "note": "none"}, message((42,), {})) is False, "a default"


#: A value of a message; values that find it, and values that do not.
VALUES: list[tuple[Any, list[Any], list[Any]]] = [
    (42, [42, 42.0, TypedValue("42"), TypedValue("42.0")], ["42", 43, True, TypedValue("4")]),
    ("42", ["42", TypedValue("42"), TypedValue('"42"')], [42, TypedValue('"43"')]),
    (1, [1, TypedValue("1")], [True, TypedValue("true")]),
    (True, [True, TypedValue("true")], [1, "true", TypedValue("True"), TypedValue("1")]),
    (None, [None, TypedValue("null")], ["None", 0, TypedValue("None")]),
    ("a=b", [TypedValue("a=b")], [TypedValue("a")]),
    ("", ["", TypedValue("")], [None]),
    ([1, "a"], [[1, "a"], (1, "a"), TypedValue('[1, "a"]')], [[1], [1, "b"], TypedValue("1")]),
    ({"n": [1]}, [{"n": [1]}, TypedValue('{"n": [1]}')], [{"n": [True]}, {}, TypedValue("n")]),
    (2**70, [2**70, TypedValue(str(2**70))], [2**70 + 1]),
    (NOON, [NOON, TypedValue(NOON.isoformat())], [TypedValue("2030"), NOON.isoformat()]),
    (ORDER, [ORDER, TypedValue(str(ORDER))], [str(ORDER), TypedValue("0d1b0f6e")]),
    (Decimal("1.5"), [Decimal("1.5"), TypedValue("1.5")], [TypedValue("1.6")]),
    ("Grüße \x1b", ["Grüße \x1b", TypedValue("Grüße \x1b")], ["Gr"]),
]


@pytest.mark.parametrize(("value", "same", "other"), VALUES)
def test_values_are_compared_as_in_json(tasks: Any, value: Any, same: Any, other: Any) -> None:
    for told in (message((value,), {}), message((), {"order_id": value}, packs=True)):
        assert [finds(tasks, {"order_id": each}, told) for each in same] == [True] * len(same)
        assert [finds(tasks, {"order_id": each}, told) for each in other] == [False] * len(other)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack", "pickle"])
def test_pickle_is_decoded_only_when_asked(tasks: Any, serializer: str, packs: bool) -> None:
    told = message((42,), {}, serializer=serializer, packs=packs)
    unpickling = ArgumentSearch({"order_id": 42}, tasks, ["application/x-python-serialize"])

    assert finds(tasks, {"order_id": 42}, told) is (None if serializer == "pickle" else True)
    assert unpickling.matches(told) is True


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        [],
        {**message((42,), {}), "body": "nothing"},
        {**message((42,), {}), "body": json.dumps([42])},
        {**message((42,), {}), "body": json.dumps({"task": "plain", "args": [42]})},
        {**message((42,), {}), "content-type": "application/x-unknown"},
        {**message((42,), {}), "headers": None},
    ],
)
def test_what_cannot_be_read_is_unknown(tasks: Any, broken: Any) -> None:
    assert finds(tasks, {"order_id": 42}, broken) is None


@pytest.mark.parametrize("arg", [{}, "order_id=42", ["order_id"], 42, {"": 1}, {1: 1}])
def test_arguments_are_given_by_name(arg: Any) -> None:
    with pytest.raises(InvalidFilter, match="arg="):
        Filter(arg=arg)


def test_what_no_message_can_hold_is_refused() -> None:
    with pytest.raises(InvalidFilter, match="JSON"):
        Filter(arg={"order_id": object()})
    with pytest.raises(InvalidFilter, match="unpickle=True without arg"):
        Filter(unpickle=True)
    with pytest.raises(InvalidFilter, match="cannot search by argument"):
        Filter(arg={"order_id": 42}).where()


def test_names_are_known_unless_a_task_takes_any(tasks: Any) -> None:
    assert argument_names(tasks["plain"]) == {"order_id", "note"}
    assert argument_names(tasks["bound"]) == {"order_id"}
    assert argument_names(tasks["more"]) is None
