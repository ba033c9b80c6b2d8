"""Messages are decoded and encoded with the results of kombu."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_delayq.errors import RecordError
from celery_delayq.utils import message_json

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def outcome(read: Any, data: bytes) -> str:
    """Return the ``repr`` of the decoded value, or that decoding fails."""
    try:
        return repr(read(data))
    except ValueError:
        return "refused"


@given(VALUES, st.booleans())
def test_encoded_values_are_decoded_as_by_kombu(value: Any, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    data = text.encode("utf-8", "replace")

    assert outcome(message_json.decode, data) == outcome(kombu_json.loads, data)


@given(st.text('[]{}",:0123456789eE+-.\\/ \n\tnulltruefalseNaNInfinity\x00é', max_size=12))
@example("1" * 5000)
@example("-1e400")
@example('{"a": 1, "b": 2, "a": 3}')
@example('"\\ud800"')
@example("[" * 100 + "]" * 100)
def test_invalid_json_is_decoded_or_refused_as_by_kombu(text: str) -> None:
    data = text.encode()

    assert outcome(message_json.decode, data) == outcome(kombu_json.loads, data)


@pytest.mark.parametrize("text", ["[" * 2000, '{"__type__": "decimal", "__value__": "x"}'])
def test_text_that_python_cannot_decode_is_a_record_error(text: str) -> None:
    with pytest.raises(RecordError):
        message_json.decode(text.encode())


@pytest.mark.parametrize("data", [b'"\xff"', b"\xef\xbb\xbf1", b'"\xed\xa0\x80"', b"", b"\x00"])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"utf-8|BOM|Expecting value"):
        message_json.decode(data)


@given(VALUES)
def test_values_are_encoded_as_by_kombu(value: Any) -> None:
    assert message_json.encode(value) == kombu_json.dumps(value).encode()


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [{"__type__": "decimal", "__value__": "1.50"}, {"b": "\\u20ac"}]}',
        '{"a": {"\\u005f\\u005ftype__": "decimal", "__value__": "2"}}',
        '{"a": {"_\\u005Ftype\\u005f_": "bytes", "__valu\\u0065__": "x"}}',
        '{"a": {"__type__": "decimal"}, "b": "__type__"}',
        '{"a": "\\u00e9", "b": [1, 2.5, null, true]}',
    ],
)
def test_a_message_is_decoded_as_kombu_decodes_it(text: str) -> None:
    assert message_json.decode(text.encode()) == kombu_json.loads(text)
