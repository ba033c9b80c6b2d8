"""Finds which rights of an ACL an account has, without running a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from celery_delayq.store.scripting.refusals import is_denied

#: Arguments of commands that Redis checks before the account's rights.
_COMMAND_ARGUMENTS = {
    "eval": ["return 0", "1", "{key}"],
    "evalsha": ["0" * 40, "1", "{key}"],
    "config|get": ["maxmemory-policy"],
    "memory|usage": ["{key}"],
    "script|load": ["return 0"],
    "script|exists": ["0" * 40],
    "info": ["server"],
    "pubsub": ["NUMSUB", "{channel}"],
    "subscribe": ["{channel}"],
    "publish": ["{channel}", "x"],
    "time": [],
}
#: Commands whose rights cannot be checked in a transaction, or need a pattern.
_UNTRIED_COMMANDS = {"psubscribe", "punsubscribe", "unsubscribe"}


def missing(client: Redis, rules: Sequence[str]) -> list[str] | None:
    """Return the *rules* that the client's account lacks; None if that cannot be found out.

    Redis checks rights when a transaction queues a command. The transaction is discarded.

    Parameters
    ----------
    rules : Sequence[str]
        The result of :func:`celery_delayq.admin.accounts.rules`.
    """
    with client.client() as own:
        own.response_callbacks = {}  # callbacks would read the reply QUEUED as a result
        names = [rule[1:] for rule in rules if rule[0] == "+" and rule[1] != "@"]
        names = [name for name in names if name not in _UNTRIED_COMMANDS]
        try:
            plain = [name for name in names if name not in _COMMAND_ARGUMENTS]
            told = cast("list[Any]", own.execute_command("COMMAND", "INFO", *plain))
            arity = {n: abs(each[1]) - 1 for n, each in zip(plain, told, strict=True) if each}
            own.execute_command("MULTI")
        except ResponseError as exc:
            if is_denied(exc):
                return None
            raise
        # No retries: a new connection has no transaction, so that the commands would run.
        connection = own.connection
        retry, connection.retry = connection.retry, Retry(NoBackoff(), 0)
        try:
            trials = [*_trials(rules, {name: arity.get(name, 0) for name in names})]
            return [rule for rule, command in trials if _is_denied(own, command)]
        finally:
            connection.retry = retry
            with suppress(ResponseError):  # a new connection has no transaction to discard
                own.execute_command("DISCARD")


def _is_denied(client: Redis, command: Sequence[str]) -> bool:
    try:
        client.execute_command(*command)
    except ResponseError as exc:
        return is_denied(exc)
    return False


def _trials(rules: Sequence[str], arity: Mapping[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yield each rule with a command that needs this rule and, if possible, no other one."""
    key = next(_sample(each) for each in rules if each.startswith("~"))
    channel = next((_sample(each) for each in rules if each.startswith("&")), "")
    for rule in rules:
        name = rule[1:]
        if rule.startswith("~"):
            yield rule, ["EVAL", "return 0", "1", _sample(rule)]
        elif rule.startswith("&") and "*" not in rule:
            yield rule, ["PUBLISH", name, "x"]
        elif rule.startswith("+") and name in arity:
            given = _COMMAND_ARGUMENTS.get(name, ["{key}"] * arity[name])
            filled = [each.replace("{key}", key).replace("{channel}", channel) for each in given]
            yield rule, [*name.upper().split("|"), *filled]


def _sample(rule: str) -> str:
    return rule[1:].replace("??[0-9]*", "\x06\x163").replace("*", "x")
