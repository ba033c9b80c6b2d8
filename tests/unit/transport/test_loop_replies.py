"""Replies of Redis, however they are cut into pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.transport.loop.replies import ReplyReader

VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


def packed(value: Any) -> bytes:
    """Return a value as a server sends it."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return b"*%d\r\n%b" % (len(value), b"".join(map(packed, value)))


@given(st.lists(VALUES, max_size=10), st.lists(st.integers(1, 40), min_size=1))
def test_replies_are_the_same_however_they_are_cut(values: list[Any], sizes: list[int]) -> None:
    reader, data = ReplyReader(ValueError), b"".join(map(packed, values))
    found: list[Any] = []
    while data:
        for size in sizes:
            found += reader.feed(data[:size])
            data = data[size:]

    assert found == values


def test_status_error_and_null_array() -> None:
    [status, error, null] = ReplyReader(KeyError).feed(b"+OK\r\n-ERR no such key\r\n*-1\r\n")

    assert (status, null) == (b"OK", None)
    assert isinstance(error, KeyError)
    assert error.args == ("ERR no such key",)


def test_many_replies_leave_no_buffer() -> None:
    reader = ReplyReader(ValueError)
    for _ in range(10_000):
        assert [*reader.feed(packed(b"x" * 100))] == [b"x" * 100]

    assert len(reader._buffer) < 200_000


def test_what_is_no_reply_is_an_error() -> None:
    with pytest.raises(ValueError, match="no reply"):
        [*ReplyReader(ValueError).feed(b"HTTP/1.1 400\r\n")]
