"""Computes the rights of Redis accounts from the commands of scripts and the names of keys.

>>> " ".join(rules("producer", ["mail"]))  # doctest: +ELLIPSIS
'resetkeys ~delayq:next_due ~delayq:queues ~delayq:limits ~_kombu.binding.mail ...'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from celery_delayq.store.keys import Keys
from celery_delayq.store.scripting import scripts

Role = Literal["producer", "worker", "dispatcher", "operator", "exporter"]
ROLES: tuple[Role, ...] = get_args(Role)

_COMMAND = re.compile(r"(?:redis\.p?call\(|read_typed\('\w+',)\s*'(\w+)'")


#: Commands with which ``include/types.lua`` determines the type of a key.
_PROBES = {"hlen", "llen", "zcard", "scard", "strlen", "xlen"}

#: Commands of kombu, redis-py and this package outside scripts.
_PLAIN: dict[Role, set[str]] = {
    "producer": {"eval", "evalsha", "time", "wait", "sadd", "smembers", "llen", "zcard"},
}
_PLAIN["worker"] = _PLAIN["producer"] | {
    *("brpop", "rpop", "lpush", "lrem", "publish", "subscribe", "psubscribe", "unsubscribe"),
    *("punsubscribe", "exists", "set", "setnx", "get", "del", "srem", "expire", "pexpire"),
    *("zadd", "zrem", "zrevrangebyscore", "zrangebyscore", "zrange", "zmscore", "zscan"),
    *("script|load", "script|exists", "zremrangebyscore", "pttl"),
    *("hset", "hget", "hdel", "hgetall", "hkeys", "hmget", "hlen", "xadd"),
}
_PLAIN["dispatcher"] = {
    *("eval", "evalsha", "time", "exists", "publish", "subscribe", "unsubscribe", "script|load"),
    *("hget", "hgetall", "hset", "hlen", "hscan", "zadd", "zcard", "zrange", "zrem", "zscan"),
    *("zrangebyscore", "set", "get", "sadd", "smembers", "llen"),
}
_PLAIN["exporter"] = {
    *("eval", "evalsha", "time", "exists", "hget", "hgetall", "zcount", "zcard", "zrange", "zscan"),
    *(
        "zlexcount",
        "zrangebylex",
        "zrangebyscore",
        "zscore",
        "llen",
        "lrange",
        "xrange",
        "xrevrange",
        "memory|usage",
    ),
}
_PLAIN["operator"] = _PLAIN["worker"] | {
    *("lrange", "zcount", "zlexcount", "zrangebylex", "zscore", "type", "scan", "memory|usage"),
    *("xlen", "xrange", "xrevrange", "unlink"),
}


def scripts_of(role: Role) -> list[str]:
    """Return the names of the scripts that a role runs. Operators run all scripts.

    For other roles, the headers of the scripts name the roles.
    """
    names = scripts.names_with_variants()
    is_all = role == "operator"
    return [name for name in names if is_all or role in scripts.load(name).header.roles]


def commands(role: Role) -> list[str]:
    """Return the commands that a role runs, in lower case."""
    found = _PLAIN[role] | _PROBES
    for name in scripts_of(role):
        found.update(map(str.lower, _COMMAND.findall(scripts.load(name).source)))
    if role == "exporter":
        # Functions of includes run these commands. The exporter's scripts do not call them, or
        # continue when Redis refuses the note that a reading goes on.
        found -= {"hdel", "hset", "pexpire", "unlink", "zadd", "zrem"}
    elif role != "producer":
        found |= {"lpush", "rpush"}  # leases/requeue.lua has the name in a variable
    return sorted(found)


def rules(
    role: Role, queues: Sequence[str] = (), *, prefix: str = "", database: int = 0
) -> list[str]:
    """Return the rules of ``ACL SETUSER`` for an account.

    Parameters
    ----------
    queues : Sequence[str]
        The queues that the account may use; empty for all queues.
    prefix, database : str, int
        The setting ``global_keyprefix``, and the number of the database.
    """
    keys = Keys(prefix, database)
    stock = f"{prefix}/{database}."
    if role == "producer":
        patterns = [keys.next_due, keys.queues, keys.limits]
        channels = [keys.wake, f"{stock}celeryev/task.*"]  # task-sent, task-revoked
    else:
        patterns = [f"{prefix}delayq:*"]
        channels = [f"{prefix}delayq:*"] if role != "exporter" else []
    if role in ("worker", "operator"):
        # Queues of remote control and of events. Not *celery*, which would match results too.
        patterns += [f"{prefix}unacked*", f"{prefix}*.celery.pidbox*", f"{prefix}*celeryev.*"]
        # A subscription to a pattern needs a rule with the same pattern.
        channels += [f"{stock}celery.pidbox", f"{stock}celeryev/*", f"{stock}celeryev/worker.*"]
    if role in ("worker", "dispatcher", "operator"):
        patterns.append("redbeat*")  # to detect a running celery beat
    if role == "producer" and queues:
        # The bindings of each queue's default exchange. The exchange has the name of the queue.
        bindings = ("binding", "binding_permanent")
        patterns += [f"{prefix}_kombu.{each}.{queue}" for queue in queues for each in bindings]
    elif role != "exporter":
        patterns.append(f"{prefix}_kombu.binding*")
    for queue in queues:
        # The name of a ready list of lower priority is the queue, a separator and a number.
        patterns += [f"{keys.queue(queue).own}*", f"{prefix}{queue}", f"{prefix}{queue}??[0-9]*"]
    if not queues:
        patterns = [f"{prefix}*"]
    return [
        "resetkeys",
        *(f"~{pattern}" for pattern in patterns),
        "resetchannels",
        *(f"&{channel}" for channel in channels),
        *("-@all", "+@connection", "+@transaction", "-@admin", "-@dangerous", "+info"),
        *(["+config|get"] if role in ("worker", "operator") else []),
        *(f"+{command}" for command in commands(role)),
    ]
