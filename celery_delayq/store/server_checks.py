"""Checks of the Redis server, made when a connection opens or a worker starts."""

from __future__ import annotations

import logging
import math
from typing import cast

from redis import Redis
from redis.exceptions import ResponseError

from celery_delayq.errors import EarlierLayout, UnsupportedServer
from celery_delayq.store.keys import EARLIER_KEYS, Keys
from celery_delayq.store.scripting.refusals import is_denied
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: What is said of a policy that evicts.
EVICTION_TEXT = (
    "Redis evicts keys when it is full (maxmemory-policy %s): scheduled tasks can be lost; set "
    "maxmemory-policy to noeviction"
)

#: What is said of a node of a cluster where a single Redis is meant.
_CLUSTER_NODE_TEXT = (
    "this Redis is a node of a Redis Cluster: use a delayq+rediscluster:// URL for it, or "
    "delayq+redisclusters:// over TLS"
)

#: The oldest version of Redis on which the package is tested.
MIN_REDIS = (6, 2)


def check_server(client: Redis, *, in_cluster: bool = False) -> None:
    """Refuse a server older than Redis 6.2; one that hides its version passes.

    Parameters
    ----------
    in_cluster : bool
        Whether it may be, and is, a node of a Redis Cluster.

    Raises
    ------
    UnsupportedServer
        The server is too old, or a node of a cluster though it may be none.
    """
    try:
        told = cast("dict[str, object]", client.info("server"))
        version = str(told["redis_version"])
    except (ResponseError, KeyError) as exc:
        warn_once(
            logger,
            f"Redis does not tell its version ({exc}); celery_delayq needs "
            f"{'.'.join(map(str, MIN_REDIS))} or newer. {_how_to_allow('+info')}",
        )
        return
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_REDIS:
        raise UnsupportedServer(
            f"Redis {version} is too old for celery_delayq: "
            f"use {'.'.join(map(str, MIN_REDIS))} or newer, or a Valkey"
        )
    # Valkey says server_mode unless it is to look like Redis.
    if "cluster" in (told.get("redis_mode"), told.get("server_mode")) and not in_cluster:
        raise UnsupportedServer(_CLUSTER_NODE_TEXT)


def check_refusal(exc: ResponseError) -> None:
    """Explain why a server refuses the connection itself.

    Raises
    ------
    UnsupportedServer
        The server does not know HELLO, with which redis-py 8 begins: it is older than Redis 6. Or
        it does not have the database of the URL, such as a node of a cluster, which has 0 alone.
    """
    if "SELECT is not allowed in cluster mode" in str(exc):
        raise UnsupportedServer(_CLUSTER_NODE_TEXT) from exc
    if "DB index is out of range" in str(exc):  # Valkey 9 says so on a node too
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
    """Refuse a database with the keys of a version before 0.1.0; nothing of it was released.

    Raises
    ------
    EarlierLayout
        There are such keys.
    """
    names = [keys.stock(name) for name in EARLIER_KEYS]
    try:
        if not client.exists(*names):
            return
        found = [name for name in names if client.exists(name)]
    except ResponseError:
        return  # the account has no rights on these keys
    raise EarlierLayout(
        f"Redis has keys of a version before 0.1.0 ({', '.join(found)}), which this version cannot "
        "read. Let workers of that version drain the queues or move them back to stock, then "
        "delete these keys; or use another database or global_keyprefix"
    )


def check_writable(client: Redis, keys: Keys) -> None:
    """Make a write that changes nothing: a replica and a full server or disk refuse it.

    Raises
    ------
    StoreFull, CommandRefused
        It is refused, by something else than the rights of the account.
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
    """Return after how many seconds Redis closes a connection without commands (``timeout``);
    infinite for never, None where it does not say.
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
