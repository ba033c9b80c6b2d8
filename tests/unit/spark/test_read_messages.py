"""Messages as columns: what Arrow reads is what Python reads, whoever wrote the messages."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from celery_delayq.spark.read import messages as module
from celery_delayq.spark.read.messages import COLUMNS, Messages, read

REST = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def message(id: Any = "a", args: Any = (), kwargs: Any = None, **more: Any) -> bytes:
    """Return a message as Celery makes it; *more* are headers, ``own`` is our data."""
    own = more.pop("own", {"label": f"{id} m1 0 -"})
    body = json.dumps([args, kwargs or {}, REST]).encode()
    properties = {"delayq": own, "body_encoding": "base64", "delivery_tag": "tag"}
    return json.dumps(
        {
            "properties": properties,
            "body": b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": "mail.remind",
                "id": id,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": id,
                "origin": "gen1@host",
                **more,
            },
        }
    ).encode()


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    values = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def by_arrow(given: list[bytes]) -> list[dict[str, Any]] | None:
    """Return rows as Arrow reads them, None where it is left to Python."""
    reader = Messages(COLUMNS)
    if reader._parse(given) is None:
        return None
    columns, readable = reader.columns(given)
    assert all(readable)
    return rows_of(columns)


def in_order(rows: list[Any]) -> list[Any]:
    """Return rows with the names of their headers in order, which means nothing."""
    return [row and {**row, "headers": sorted(row["headers"])} for row in rows]


USUAL = [
    message("a", (1, "x"), {"y": [None, {"z": "}]"}]}),
    message("b", ("], {", '"', "\\"), {"é": "ü"}),
    message("c", own={"label": "c m1 0 dkey", "eta": "2030-01-31T09:00:00.123456+00:00"}),
    message("d", own={"label": "d m1 0 -", "eta": "2030-01-31T09:00:00"}),
    message("e", own={"label": "e m1 0 -", "context": '{"user":"ada","n":[1]}'}),
    message("f", expires="2030-01-31T09:00:00Z", group="g", parent_id="p"),
    message("g", own={"label": "g m1 0 -", "group": "of a chain"}),
    message("h", traceparent="00-1-2-01", tenant="acme", when="2026-01-01T00:00:00Z"),
    message("i", own={"label": "i n 0 -", "unique": {"key": "dfrom the sender"}}),
    message("nul \0", args=("\0",)),
    message("\U0001f600"),
]


@pytest.mark.parametrize("given", [USUAL, *([each] for each in USUAL)])
def test_arrow_reads_what_python_reads(given: list[bytes]) -> None:
    assert by_arrow(given) == [read(each) for each in given]


@pytest.mark.parametrize(
    "odd",
    [
        message(7),
        message("a", retries=10**30),
        message("a", retries=2**31),
        message("a", level=7),
        message("a", tenant={"a": 1}),
        message("\ud800"),
        message("a", own=5),
        b"",
        b"{}",
        b"[]",
        b"{}{}",
        b'{"headers": 1, "properties": {}}',
        b'{"headers": {"id": null}, "properties": {}}',
        b'{"headers": {"id": "a"}}',
        b'{"a":\n' + message("a"),
        b'{"#": 1, ' + message("a")[1:],
        b"\xff\xfe",
        b'{"headers": {"id": "\xff"}, "properties": {}}',
        b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"headers": {"id": "a", "x": ' + b'{"a":' * 90_000 + b"1" + b"}" * 90_002,
        message("a").replace(b"properties", b"\xc3\xa4"),
    ],
)
def test_one_odd_message_leaves_the_others_as_they_are(odd: bytes) -> None:
    given = [USUAL[0], odd, USUAL[1]]

    columns, readable = Messages(COLUMNS).columns(given)

    expected = [read(each) for each in given]
    assert [*readable] == [True, expected[1] is not None, True]
    assert rows_of(columns) == [each or dict.fromkeys(COLUMNS) for each in expected]


def test_two_that_would_make_up_for_each_other_are_not_taken_for_two() -> None:
    nested = b'{"headers": {"id": "x"}, "properties": {}, "y":'
    double = USUAL[0] + USUAL[1]

    _, readable = Messages(COLUMNS).columns([nested, USUAL[0] + b"}", double])

    assert [*readable] == [False, False, False]


@pytest.mark.parametrize(
    ("body", "args", "kwargs"),
    [
        ('[[1], {"a": 2}, {"callbacks": null}]', "[1]", '{"a": 2}'),
        ('[[1],{"a":2},{}]', "[1]", '{"a": 2}'),
        ("no JSON", None, None),
        ("[[1]", None, None),
        ("[1, 2, 3]", None, None),
        ('[[NaN], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
         "[NaN]", "{}"),
    ],
)  # fmt: skip
def test_bodies_are_read_however_they_are_spelled(
    body: str, args: str | None, kwargs: str | None
) -> None:
    usual = json.loads(message("a"))
    plain = {**usual, "body": body, "properties": {"delivery_tag": "tag"}}
    coded = {**usual, "body": b64encode(body.encode()).decode()}

    for each in (plain, coded):
        columns, [good] = Messages(COLUMNS).columns([json.dumps(each).encode()])
        assert good
        assert (columns["args"][0].as_py(), columns["kwargs"][0].as_py()) == (args, kwargs)


def test_only_what_is_wanted_is_made() -> None:
    columns, _ = Messages({"id", "args", "due"}).columns(USUAL)

    assert [*columns] == ["id", "args"]


def test_many_names_of_headers_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [message(str(n), **{f"name {n}": "x"}) for n in range(module._NAMES + 5)]

    columns, _ = Messages(COLUMNS).columns(given)

    assert columns["headers"].to_pylist() == [[(f"name {n}", "x")] for n in range(len(given))]


def test_messages_cut_anywhere_are_read_by_both_alike() -> None:
    chance = random.Random(7)
    for _ in range(300):
        data = bytearray(chance.choice(USUAL))
        for _ in range(chance.randint(1, 3)):
            where = chance.randrange(len(data))
            how = chance.choice(["cut", "swap", "take"])
            if how == "cut":
                del data[where:]
            elif how == "swap":
                data[where] = chance.choice(b'{}[]",:0a\n\\')
            else:
                del data[where : where + chance.randint(1, 9)]
            data = data or bytearray(b" ")
        found = by_arrow([bytes(data)])
        if found is not None:
            assert in_order(found) == in_order([read(bytes(data))]), bytes(data)
