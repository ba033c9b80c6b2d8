"""Checks of the Redis server when a connection opens or a worker starts."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import cast

from redis import Redis
from redis.exceptions import ResponseError

from celery_delayq.errors import EarlierLayout, UnsupportedServer
from celery_delayq.store.keys import EARLIER_KEYS, Keys
from celery_delayq.store.scripting.refusals import is_denied
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: The warning about a policy that evicts keys.
EVICTION_TEXT = (
    "Redis evicts keys when it is full (maxmemory-policy %s): scheduled tasks can be lost; set "
    "maxmemory-policy to noeviction"
)

#: The error text for a node of a cluster in place of a single Redis.
_CLUSTER_NODE_TEXT = (
    "this Redis is a node of a Redis Cluster: use a delayq+rediscluster:// URL for it, or "
    "delayq+redisclusters:// over TLS"
)

#: The oldest version of Redis on which the package is tested.
MIN_REDIS = (6, 2)

#: In the replies of servers without EVAL, and of a Valkey without its Lua engine.
_NO_LUA_TEXTS = ("unknown command", "scripting engine")


def check_server(client: Redis, *, in_cluster: bool = False) -> None:
    """Refuse a server that is older than Redis 6.2 or runs no scripts.

    A server that hides its version passes.

    Parameters
    ----------
    in_cluster : bool
        Whether the server is expected to be a node of a Redis Cluster.

    Raises
    ------
    UnsupportedServer
        The server is too old, runs no scripts, or is a node of a cluster although *in_cluster* is
        False.
    """
    with client.pipeline(transaction=False) as pipe:
        pipe.info("server")
        pipe.eval("return 1", 0)
        info, evaluated = pipe.execute(raise_on_error=False)
    _check_version(info, in_cluster)
    _check_scripts(evaluated)


def _check_version(info: dict[str, object] | Exception, in_cluster: bool) -> None:
    """Refuse a server by the section "server" of its INFO, or its refusal."""
    if isinstance(info, Exception) or "redis_version" not in info:
        warn_once(
            logger,
            f"Redis does not tell its version ({info}); celery_delayq needs "
            f"{'.'.join(map(str, MIN_REDIS))} or newer. {_how_to_allow('+info')}",
        )
        return
    version = str(info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_REDIS:
        raise UnsupportedServer(
            f"Redis {version} is too old for celery_delayq: "
            f"use {'.'.join(map(str, MIN_REDIS))} or newer, or a Valkey"
        )
    # Valkey calls this server_mode, unless Valkey is configured to look like Redis.
    if "cluster" in (info.get("redis_mode"), info.get("server_mode")) and not in_cluster:
        raise UnsupportedServer(_CLUSTER_NODE_TEXT)


def _check_scripts(reply: object) -> None:
    """Refuse a server by its reply to EVAL.

    Other errors, such as those of a busy server, are those of the next call.
    """
    if isinstance(reply, Exception) and any(text in str(reply) for text in _NO_LUA_TEXTS):
        raise UnsupportedServer(
            f"this server runs no Lua scripts ({reply}): celery_delayq needs EVAL and EVALSHA; "
            "allow them, load the Lua module of Valkey, or use another Redis or Valkey"
        ) from reply


def name_and_version(info: Mapping[str, object]) -> tuple[str, str]:
    """Return the name and the version of a server by the section "server" of its INFO.

    A Valkey also tells the version of Redis with which it is compatible.
    """
    if version := info.get("valkey_version"):
        return "Valkey", str(version)
    return "Redis", str(info.get("redis_version"))


def check_refusal(exc: ResponseError) -> None:
    """Raise an error with advice if the server refuses the connection itself.

    Raises
    ------
    UnsupportedServer
        The server is older than Redis 6: it lacks HELLO, which redis-py 8 sends first. Or the
        server lacks the database of the URL: a node of a cluster has only database 0.
    """
    if "SELECT is not allowed in cluster mode" in str(exc):
        raise UnsupportedServer(_CLUSTER_NODE_TEXT) from exc
    if "DB index is out of range" in str(exc):  # also the reply of a Valkey 9 node
        raise UnsupportedServer(
            f"this Redis does not have the database of the broker URL ({exc}): use a lower number. "
            f"Or {_CLUSTER_NODE_TEXT}"
        ) from exc
    if "HELLO" in str(exc):
        raise UnsupportedServer(
            f"this Redis is older than 6.0 ({exc}): celery_delayq needs "
            f"{'.'.join(map(str, MIN_REDIS))} or newer, or a Valkey"
        ) from exc


def check_layout(client: Redis, keys: Keys) -> None:
    """Refuse a database with keys of a version before 0.1.0, which was not released.

    Raises
    ------
    EarlierLayout
        The database has such keys.
    """
    names = [keys.stock(name) for name in EARLIER_KEYS]
    try:
        if not client.exists(*names):
            return
        found = [name for name in names if client.exists(name)]
    except ResponseError:
        return  # the account lacks the rights to these keys
    raise EarlierLayout(
        f"Redis has keys of a version before 0.1.0 ({', '.join(found)}), which this version cannot "
        "read. Let workers of that version drain the queues or move them back to stock, then "
        "delete these keys; or use another database or global_keyprefix"
    )


def check_writable(client: Redis, keys: Keys) -> None:
    """Send a write command that changes nothing: a replica and a full server or disk refuse it.

    Raises
    ------
    StoreFull, CommandRefused
        The server refuses the command, for another reason than a missing right.
    """
    try:
        client.zadd(keys.next_due, {"": 0}, xx=True)
    except ResponseError as exc:
        if not is_denied(exc):
            raise


def warn_of_settings(client: Redis) -> None:
    """Log a warning for each setting of the server that can lose tasks."""
    policy = None
    try:
        policy = cast("dict[str, str]", client.config_get("maxmemory-policy"))["maxmemory-policy"]
    except (ResponseError, KeyError) as exc:
        warn_once(
            logger,
            f"Redis does not allow CONFIG ({exc}): whether it keeps what is scheduled "
            "(maxmemory-policy noeviction, appendonly yes) is for you to check. "
            f"{_how_to_allow('+config|get')}",
        )
    if policy is not None and evicts(policy):
        logger.warning(EVICTION_TEXT, policy)


def closes_idle_after(client: Redis) -> float | None:
    """Return the seconds after which Redis closes a connection without commands (``timeout``);
    infinite for never, None if Redis does not tell.
    """
    try:
        seconds = float(cast("dict[str, str]", client.config_get("timeout"))["timeout"])
    except (ResponseError, KeyError, ValueError):
        return None
    return seconds or math.inf


def evicts(policy: str) -> bool:
    """Return whether a maxmemory-policy lets Redis drop keys."""
    return policy != "noeviction"


def _how_to_allow(rule: str) -> str:
    return f"To let this account ask: ACL SETUSER <name> {rule} (docs/accounts.md)"
