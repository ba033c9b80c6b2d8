"""Which rights of an ACL an account has, found without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from celery_delayq.store.scripting.refusals import is_denied

#: Arguments of commands that read them before they look at rights.
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
#: Rights of these show only outside of a transaction, or by patterns.
_UNTRIED_COMMANDS = {"psubscribe", "punsubscribe", "unsubscribe"}


def missing(client: Redis, rules: Sequence[str]) -> list[str] | None:
    """Return which of the *rules* the client's account lacks; None where it cannot be known.

    Redis checks rights when a transaction queues a command; this one is discarded.

    Parameters
    ----------
    rules : Sequence[str]
        As :func:`celery_delayq.admin.accounts.rules` returns them.
    """
    with client.client() as own:
        own.response_callbacks = {}  # they would read QUEUED as a result
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
        # On a new connection there would be no transaction: the rest would run.
        connection = own.connection
        retry, connection.retry = connection.retry, Retry(NoBackoff(), 0)
        try:
            trials = [*_trials(rules, {name: arity.get(name, 0) for name in names})]
            return [rule for rule, command in trials if _is_denied(own, command)]
        finally:
            connection.retry = retry
            with suppress(ResponseError):  # on a new connection: the lost one has none any more
                own.execute_command("DISCARD")


def _is_denied(client: Redis, command: Sequence[str]) -> bool:
    try:
        client.execute_command(*command)
    except ResponseError as exc:
        return is_denied(exc)
    return False


def _trials(rules: Sequence[str], arity: Mapping[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yield rules with commands that need them and, if possible, no others that may be lacking."""
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
