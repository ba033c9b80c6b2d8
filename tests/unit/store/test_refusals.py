"""What an error reply means, by the texts of all servers and versions of redis-py."""

from __future__ import annotations

import pytest
from redis import exceptions

from celery_delayq.store.scripting.errors import error_of
from celery_delayq.store.scripting.refusals import REFUSALS, Refusal, code_of, refusal_of

DENIED = "the user has no permissions to run the 'set' command"


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        # redis-py has a class, and cuts the code off.
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
        (exceptions.NoPermissionError(DENIED), "NOPERM"),
        (exceptions.NoPermissionError("No permissions to access a key"), "NOPERM"),
        (exceptions.MasterDownError("Link with MASTER is down"), "MASTERDOWN"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING"),
        (exceptions.AuthenticationError("invalid username-password pair"), "NOAUTH"),
        # It has none.
        (exceptions.ResponseError("BUSY Redis is busy running a script."), "BUSY"),
        (exceptions.ResponseError("UNBLOCKED force unblock"), "UNBLOCKED"),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas. script: 5"), "NOREPLICAS"),
        (exceptions.ResponseError("OOM command not allowed when used memory"), "OOM"),
        # In a script of Redis 6.2, and in a pipeline.
        (
            exceptions.ResponseError(
                "Error running script (call to f_5): @user_script:1: "
                "@user_script: 1: -READONLY You can't write"
            ),
            "READONLY",
        ),
        (
            exceptions.ResponseError(
                "Error running script (call to f_5): @user_script:81: "
                "-NOREPLICAS Not enough good replicas"
            ),
            "NOREPLICAS",
        ),
        (
            exceptions.ResponseError(
                "Command # 1 (SADD s m) of pipeline caused error: "
                "MISCONF Redis is configured to save"
            ),
            "MISCONF",
        ),
        # Without a code: in scripts of Redis 6.2 and 7, of Redis 8 and Valkey, and on connecting.
        (
            exceptions.ResponseError("The user executing the script can't run this command"),
            "NOPERM",
        ),
        (
            exceptions.ResponseError("ACL failure in script: No permissions to access a key"),
            "NOPERM",
        ),
        (exceptions.ConnectionError("max number of clients reached"), "MAXCLIENTS"),
    ],
    ids=str,
)
def test_the_code_is_found(exc: exceptions.RedisError, code: str) -> None:
    assert code_of(exc) == code
    assert refusal_of(exc) is REFUSALS[code]
    assert code in (code_of(error_of(exc)), "LOADING", "MAXCLIENTS", "NOAUTH")


@pytest.mark.parametrize(
    "exc",
    [
        exceptions.ResponseError("WRONGTYPE Operation against a key"),
        exceptions.ResponseError("unknown command 'NOPE'"),
        exceptions.ResponseError("user_script:1: attempt to index a nil value"),
    ],
    ids=str,
)
def test_any_other_reply_is_a_fault_of_the_call(exc: exceptions.RedisError) -> None:
    assert refusal_of(exc) is Refusal.FAULT


def test_what_is_no_reply_means_nothing() -> None:
    assert refusal_of(exceptions.ConnectionError("Connection refused")) is None
    assert refusal_of(KeyError("READONLY")) is None
