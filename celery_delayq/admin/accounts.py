"""The rights that accounts of Redis need, made of the scripts' commands and the names of keys.

>>> " ".join(rules("producer", ["mail"]))  # doctest: +ELLIPSIS
'resetkeys ~delayq:next_due ~delayq:queues ~_kombu.binding* ~{mail}:* ~mail ~mail??[0-9]* ...'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from celery_delayq.store.keys import Keys
from celery_delayq.store.scripting import scripts

Role = Literal["producer", "worker", "operator"]

_COMMAND = re.compile(r"redis\.p?call\(\s*'(\w+)'")

#: The scripts that a role runs; operators run all.
_SCRIPTS: dict[Role, Sequence[str]] = {
    "producer": ("schedule/add", "schedule/push_ready", "deadletters/add"),
    "worker": (
        *("schedule/add", "schedule/push_ready", "deadletters/add"),
        *("leases/use_retry_budget", "control/revoke"),
        *(
            "dispatch/promote",
            "dispatch/next_queue",
            "dispatch/defer_queue",
            "deadletters/trim",
            "leases/reclaim_expired",
        ),
        *(
            "leases/acquire",
            "leases/extend",
            "leases/ack",
            "leases/requeue",
            "leases/dead_letter",
            "leases/replace",
            "history/add",
        ),
        *(
            "periodic/claim_due",
            "periodic/fire",
            "periodic/compare_and_set",
            "periodic/announce_version",
            "scan/hash_scan",
            "scan/hash_values",
        ),
        *("deadletters/page", "deadletters/delete"),
        # Remote control: what is scheduled, and what is revoked.
        *("scan/range", "control/find", "control/cancel"),
    ),
    "operator": (),
}

#: With which ``include/types.lua`` finds out the type of a key.
_PROBES = {"hlen", "llen", "zcard", "scard", "strlen", "xlen"}

#: What kombu, redis-py and we call outside of scripts.
_PLAIN: dict[Role, set[str]] = {
    "producer": {"eval", "evalsha", "time", "wait", "sadd", "smembers", "llen", "zcard"},
}
_PLAIN["worker"] = _PLAIN["producer"] | {
    *("brpop", "rpop", "lpush", "lrem", "publish", "subscribe", "psubscribe", "unsubscribe"),
    *("punsubscribe", "exists", "set", "setnx", "get", "del", "srem", "expire", "pexpire"),
    *("zadd", "zrem", "zrevrangebyscore", "zrangebyscore", "zrange", "zmscore", "zscan"),
    *("script|load", "script|exists", "zremrangebyscore"),
    *("hset", "hget", "hdel", "hgetall", "hkeys", "hmget", "hlen", "xadd"),
}
_PLAIN["operator"] = _PLAIN["worker"] | {
    *("lrange", "zcount", "zlexcount", "zrangebylex", "zscore", "type", "scan", "memory|usage"),
    *("xlen", "xrange", "xrevrange", "unlink"),
}


def commands(role: Role) -> list[str]:
    """Return the commands that a role runs, in lower case."""
    found = set(_PLAIN[role]) | _PROBES
    for name in _SCRIPTS[role] or scripts.names():
        found.update(each.lower() for each in _COMMAND.findall(scripts.load(name).source))
    if role != "producer":
        found |= {"lpush", "rpush"}  # leases/requeue.lua chooses between them
    return sorted(found)


def rules(
    role: Role, queues: Sequence[str] = (), *, prefix: str = "", database: int = 0
) -> list[str]:
    """Return the rules of ``ACL SETUSER`` for an account.

    Parameters
    ----------
    queues : Sequence[str]
        Those that it may use; none: all.
    prefix, database : str, int
        The ``global_keyprefix``, and the number of the database.
    """
    keys = Keys(prefix, database)
    if role == "producer":
        patterns = [keys.next_due, keys.queues]
        channels = [keys.wake]
    else:
        patterns = [f"{prefix}delayq:*", f"{prefix}unacked*", f"{prefix}*celery*"]
        patterns.append("redbeat*")  # is there a beat beside us?
        stock = f"{prefix}/{database}."
        # Who subscribes to a pattern needs a rule that spells it the same way.
        channels = [
            *(f"{prefix}delayq:*", f"{stock}celery.pidbox"),
            *(f"{stock}celeryev/*", f"{stock}celeryev/worker.*"),
        ]
    patterns.append(f"{prefix}_kombu.binding*")
    for queue in queues:
        # The ready lists of lower priority have a separator and a number behind the name.
        patterns += [f"{keys.queue(queue).own}*", f"{prefix}{queue}", f"{prefix}{queue}??[0-9]*"]
    if not queues:
        patterns = [f"{prefix}*"]
    return [
        "resetkeys",
        *(f"~{pattern}" for pattern in patterns),
        "resetchannels",
        *(f"&{channel}" for channel in channels),
        *("-@all", "+@connection", "+@transaction", "-@admin", "-@dangerous", "+info"),
        *(["+config|get"] if role == "worker" else []),
        *(f"+{command}" for command in commands(role)),
    ]
