"""Our errors in place of redis-py's."""

from __future__ import annotations

import pytest
from redis import exceptions

from celery_delayq.errors import BrokerUnavailable, CommandRefused, DelayQError
from celery_delayq.store.scripting.errors import error_of


@pytest.mark.parametrize(
    ("raised", "ours"),
    [
        (exceptions.ConnectionError, BrokerUnavailable),
        (exceptions.TimeoutError, BrokerUnavailable),
        (exceptions.ResponseError, CommandRefused),
        # The password is being changed, perhaps: what workers have to say is tried again.
        (exceptions.AuthenticationError, BrokerUnavailable),
    ],
)
def test_an_error_of_ours_shows_its_message(
    raised: type[exceptions.RedisError], ours: type[DelayQError]
) -> None:
    error = error_of(raised("no such thing"))

    assert isinstance(error, ours)
    assert str(error).partition(";")[0] == "no such thing"
    assert "no such thing" in repr(error)
