"""Our errors in place of redis-py's."""

from __future__ import annotations

import pytest
from redis import exceptions

from celery_delayq.errors import DelayQError
from celery_delayq.store.scripting.client import error_of


@pytest.mark.parametrize(
    "raised",
    [
        exceptions.ConnectionError,
        exceptions.TimeoutError,
        exceptions.ResponseError,
        exceptions.AuthenticationError,
    ],
)
def test_an_error_of_ours_shows_its_message(raised: type[exceptions.RedisError]) -> None:
    error = error_of(raised("no such thing"))

    assert isinstance(error, DelayQError)
    assert (str(error), "no such thing" in repr(error)) == ("no such thing", True)
