"""Messages that any client may write. None may end a worker."""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from celery_delayq.transport.amqp.frames import Content, encoded_table

Strategy = st.SearchStrategy

#: Headers of a task message, and headers that this package and RabbitMQ add.
HEADERS = (
    *("id", "task", "lang", "shadow", "eta", "expires", "group", "group_index", "retries"),
    *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result"),
    *("replaced_task_nesting", "stamped_headers", "stamps", "compression", "traceparent"),
    *("delayq", "delayq-digit-3", "delayq-target", "delayq-due", "x-delivery-count", "x-death"),
)

#: The parts of our own data, as JSON in a header or a property.
OWN = (
    *(
        "unique",
        "skip_after",
        "limit",
        "budget",
        "retry",
        "eta",
        "label",
        "task",
        "place",
        "queue",
        "deliveries",
    ),
    *("retry_of", "message_id", "context", "group", "countdown", "unbound", "promoted"),
)

#: Encodings of Python that are no plain text, and names of no encoding.
ENCODINGS = (
    *("utf-8", "utf-7", "utf-16", "utf-32-be", "latin-1", "idna", "punycode", "unicode_escape"),
    *("raw_unicode_escape", "rot13", "zlib", "base64", "binary", "us-ascii", "undefined", "mbcs"),
    *("", "none", "\0", "UTF-8"),
)
KINDS = (
    *("application/json", "application/x-python-serialize", "application/x-yaml", "text/plain"),
    *("application/x-msgpack", "application/data", "", "none", "\0"),
)

TIMES = (
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2001-01-01T00:00:00+00:00"),
    *("2001-02-30T00:00:00", "0000-00-00T00:00:00", "9999999999-01-01", "1e12", "24:00", "P1Y"),
)

#: Whole numbers at limits: of AMQP's types, of floats, of dates.
NUMBERS = (0, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 253_402_300_800, 10**400)


def deep(levels: int, opening: str = "[", closing: str = "]", inner: str = "") -> str:
    """Return JSON in *levels* brackets."""
    return opening * levels + inner + closing * levels


#: Texts that are JSON, almost JSON, or too deep to read.
JSON_TEXTS: Strategy[str] = st.one_of(
    st.sampled_from(
        [
            *("[" * 2000, *map(deep, (300, 700, 900, 970, 2000)), deep(2000, '{"a":', "}", "1")),
            *("", "{", "null", "NaN", "-Infinity", "1e999", "9" * 5000, '"\\ud800"', "[1]", "5"),
            *('{"__type__":"datetime","__value__":5}', '{"__type__":"decimal","__value__":"x"}'),
            *('{"__type__":[],"__value__":5}', '{"__type__":"uuid","__value__":{}}', "\ufeff{}"),
        ]
    ),
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.sampled_from(NUMBERS),
            st.floats(),
            st.text(max_size=8),
            st.sampled_from((*TIMES, "\ud800", "a\0b", "\x1b[2J")),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ).map(json.dumps),
    st.dictionaries(
        st.sampled_from(OWN), st.one_of(st.none(), st.sampled_from(NUMBERS), st.text(), st.just([]))
    ).map(json.dumps),
)


def _packed(kind: str, form: str) -> Callable[[Any], bytes]:
    return lambda value: kind.encode() + struct.pack(form, value)


def _sized(kind: str) -> Callable[[bytes], bytes]:
    return lambda data: kind.encode() + struct.pack(">I", len(data)) + data


def _named(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def _in_tables(levels: int) -> bytes:
    data = b"V"
    for _ in range(levels):
        data = _sized("F")(_named(b"a", data))
    return data


def _in_arrays(levels: int) -> bytes:
    data = b"V"
    for _ in range(levels):
        data = _sized("A")(data)
    return data


_TEXTS = st.one_of(
    JSON_TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=12),
    st.sampled_from(TIMES).map(str.encode),
)

#: Values of headers, as bytes of AMQP, of each of its types.
VALUES: Strategy[bytes] = st.recursive(
    st.one_of(
        st.just(b"V"),
        _TEXTS.map(_sized("S")),
        _TEXTS.map(_sized("x")),
        st.integers(0, 2**64 - 1).map(_packed("T", ">Q")),
        st.sampled_from([-(2**63), -1, 0, 2**63 - 1]).map(_packed("l", ">q")),
        st.integers(-(2**31), 2**31 - 1).map(_packed("I", ">i")),
        st.integers(0, 2**32 - 1).map(_packed("i", ">I")),
        st.integers(0, 2**15 - 1).map(_packed("s", ">h")),
        st.integers(0, 255).map(_packed("B", ">B")),
        st.floats().map(_packed("d", ">d")),
        st.floats(width=32).map(_packed("f", ">f")),
        st.tuples(st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)).map(
            lambda pair: b"D" + struct.pack(">Bi", *pair)
        ),
        st.booleans().map(_packed("t", ">B")),
        st.sampled_from([*map(_in_tables, (40, 900, 2000)), *map(_in_arrays, (400, 900, 3000))]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: _sized("A")(b"".join(items))),
        st.lists(st.tuples(st.binary(max_size=5), inner), max_size=3).map(
            lambda items: _sized("F")(b"".join(_named(*item) for item in items))
        ),
    ),
    max_leaves=4,
)

BODIES: Strategy[bytes] = st.one_of(
    st.just(b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'),
    JSON_TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.tuples(JSON_TEXTS, JSON_TEXTS, JSON_TEXTS).map(
        lambda parts: f"[{','.join(parts)}]".encode("utf-8", "surrogatepass")
    ),
    st.binary(max_size=40),
    st.just(b'[["+2AA-"], {}, {}]'),  # a lone surrogate in UTF-7
    st.just(b'[["\\ud800"], {}, {}]'),
)


#: True in one of four cases, for changes that leave the rest of a message readable.
_ONE_IN_FOUR = st.integers(0, 3).map(lambda number: not number)


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


#: Labels that scripts find in the first bytes of a message, and some that they do not find.
LABELS = (
    *("id message 0 -", "%ff%00 message 99999999999999999999 dkey", "id message 1 skey", "a b 0 d"),
    *(
        "%zz % 0 -",
        "id message -1 -",
        "id message 1e400 -",
        "",
        " ",
        "\\ud800 b 0 -",
        "a\\u0000 b 0 -",
    ),
)

#: The first bytes of a record or of a leased value, and similar bytes.
HEADS = (
    *(b"1 0 message header.ok\n", b"1 9 message header.fails\n", b"1 5 %ff%00 %ff\n", b"2 0 m t\n"),
    *(b"1 " + b"9" * 400 + b" message t\n", b"1 -1 m t\n", b"1 0 m \n", b"", b"\n", b"\xff"),
    *(b"0\n", b"3!\n", b"0!!\n", b"9" * 400 + b"\n", b"-1\n", b"0"),
)

#: JSON of other parts of a message in Redis.
_PROPERTIES = {
    "delivery_info": '{"exchange": "", "routing_key": "celery"}',
    "delivery_mode": "2",
    "priority": "0",
    "body_encoding": '"base64"',
}


@st.composite
def envelopes(draw: Any, base: Mapping[str, Any]) -> bytes:
    """Return a message as stored in a ready list, with some *base* headers changed."""
    headers = {name: json.dumps(value) for name, value in base.items()}
    properties = {"delivery_tag": f'"{uuid.uuid4()}"', **_PROPERTIES}
    fields = {
        "body": json.dumps(base64.b64encode(draw(BODIES)).decode()),
        "content-type": '"application/json"',
        "content-encoding": '"utf-8"',
    }
    for name in draw(st.lists(st.sampled_from(HEADERS), max_size=3, unique=True)):
        _replace(draw, headers, name, 10)
    for values in (properties, fields):
        if draw(_ONE_IN_FOUR):
            _replace(draw, values, draw(st.sampled_from([*values])), 10)
    if draw(_ONE_IN_FOUR):
        fields["content-type"] = json.dumps(draw(st.sampled_from(KINDS)))
    if draw(_ONE_IN_FOUR):
        fields["content-encoding"] = json.dumps(draw(st.sampled_from(ENCODINGS)))
    own = {}
    if draw(_ONE_IN_FOUR):
        own = {"label": f'"{draw(st.sampled_from(LABELS))}"'}
    if draw(_ONE_IN_FOUR):
        _replace(draw, own, draw(st.sampled_from(OWN)), 100)
    if own:
        properties = {"delayq": _object(own), **properties}
    if draw(_ONE_IN_FOUR):
        _replace(draw, properties, "delayq", 10)
    text = _object({"properties": _object(properties), **fields, "headers": _object(headers)})
    return text.encode("utf-8", "surrogatepass")


def _replace(draw: Any, values: dict[str, str], name: str, kept: int) -> None:
    """Put another value of JSON, or almost JSON, under a name; one time in *kept* remove it."""
    values.pop(name, None)
    if draw(st.integers(0, kept - 1)):
        values[name] = draw(JSON_TEXTS)


def _object(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


@st.composite
def contents(draw: Any, base: Mapping[str, Any]) -> Content:
    """Return an AMQP message with *base* headers; some are replaced or missing."""
    headers = {name.encode(): encoded_table({name: value})[4:] for name, value in base.items()}
    for name in draw(st.lists(st.sampled_from(HEADERS), max_size=3, unique=True)):
        headers.pop(name.encode(), None)
        if draw(st.integers(0, 9)):
            headers[name.encode()] = _named(name.encode(), draw(VALUES))
    kind, encoding, flags, after = b"application/json", b"utf-8", 0xE000, b""
    if draw(_ONE_IN_FOUR):
        for name in draw(st.lists(st.binary(min_size=1, max_size=6), max_size=2, unique=True)):
            headers[name] = _named(name, draw(VALUES))
    if draw(_ONE_IN_FOUR):
        kind = draw(st.sampled_from(KINDS).map(str.encode) | st.binary(max_size=8))
    if draw(_ONE_IN_FOUR):
        encoding = draw(st.sampled_from(ENCODINGS).map(str.encode) | st.binary(max_size=8))
    if draw(_ONE_IN_FOUR):
        for flag in (0x0400, 0x0200, 0x0080, 0x0020, 0x0008):  # correlation_id … app_id
            if draw(_ONE_IN_FOUR):
                flags |= flag
                after += _short(draw(st.binary(max_size=8)))
    before = _short(kind) + _short(encoding)
    return Content("", flags, before, b"".join(headers.values()), after, draw(BODIES))


def task_headers(task: str) -> dict[str, Any]:
    """Return the headers of a task with a new id, and a mark that no change removes."""
    id = str(uuid.uuid4())
    return {"task": task, "id": id, "lang": "py", "root_id": id, "retries": 0, "mark": id}
