"""Checks an app and its broker. Each finding says what is wrong, and what to do."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from amqp.exceptions import AMQPError
from amqp.exceptions import ConnectionError as AMQPConnectionError
from celery import Celery

from celery_delayq.admin.accounts import Role
from celery_delayq.admin.doctor import limits, rabbitmq, redis_server, settings, work
from celery_delayq.admin.doctor.finding import (
    FAULT,
    NOTE,
    UNKNOWN,
    WARNING,
    Diagnosis,
    Finding,
    fault,
    unknown,
)
from celery_delayq.admin.doctor.subject import OnRedis
from celery_delayq.admin.health import answer_within
from celery_delayq.admin.masters_away import masters_away
from celery_delayq.admin.rabbitmq.broker import open_channel
from celery_delayq.errors import (
    BrokerUnavailable,
    CommandRefused,
    DelayQError,
    UnsupportedServer,
)
from celery_delayq.settings import Settings
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.store.scripting.refusals import is_denied
from celery_delayq.store.server.checks import name_and_version
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.text import spelled

Check = Callable[[], Iterator[Finding]]

#: Checks of a server, in their order. On a Redis Cluster each is made once for each master.
_SERVER_CHECKS: dict[str, Callable[[OnRedis], Iterator[Finding]]] = {
    "role": redis_server.role,
    "eviction": redis_server.eviction,
    "persistence": redis_server.persistence,
    "disk": redis_server.disk,
    "memory": redis_server.memory,
    "connections": redis_server.connections,
    "replicas": redis_server.replicas,
    "cluster replicas": redis_server.cluster_replicas,
    "cluster coverage": redis_server.cluster_coverage,
    "clock": redis_server.clock,
    "latency": redis_server.latency,
    "script cache": redis_server.script_cache,
}

#: All checks on Redis, in their order. Those of data are made for each hash tag.
REDIS_CHECKS: dict[str, Callable[..., Iterator[Finding]]] = {
    **_SERVER_CHECKS,
    "rights": settings.rights,
    "queues": settings.queues,
    "dispatchers": work.dispatchers,
    "consumers": work.consumers,
    "leases": work.leases,
    "dead letters": work.dead_letters,
    "limits": limits.limits,
    "stalled lanes": limits.stalled_lanes,
    "periodic": work.periodic,
    "beat": work.running_beats,
    "stock workers": work.stock_workers,
    "stock ETAs": work.stock_etas,
    "fsck": work.fsck,
}

#: Checks that ask workers or read many keys.
_SLOW_CHECKS = frozenset({"consumers", "stalled lanes", "stock workers", "stock ETAs", "fsck"})
#: Checks that are made once for the app.
_SINGLE_CHECKS = frozenset({"beat", "stock workers"})
#: Checks that compare all hash tags.
_JOINT_CHECKS = frozenset({"periodic"})
#: Checks of keys that only the first hash tag has.
_FIRST_TAG_CHECKS = ("beat", "hash tags")

RABBITMQ_CHECKS: dict[str, Callable[[Celery, Any], Iterator[Finding]]] = {
    "latency": rabbitmq.latency,
    "delays": rabbitmq.delays,
    "queues": rabbitmq.queues,
    "unroutable": rabbitmq.unroutable,
    "after a restart": rabbitmq.after_restart,
    "leaders": rabbitmq.leaders,
    "alarms": rabbitmq.alarms,  # last: RabbitMQ stops reading from a blocked publisher
}

#: Seconds to wait for the first answer of the broker. An unreachable master of a Redis Cluster
#: takes several seconds more.
ANSWER_SECONDS = 30.0

_PACKAGES = ("celery-delayq", "celery", "kombu", "redis", "amqp")


def diagnose(
    session: Session,
    *,
    role: Role = "worker",
    progress: Callable[[int, int], object] = lambda _total, _done: None,
    quick: bool = False,
) -> Diagnosis:
    """Make all checks. A check that cannot be made becomes a finding, and the others go on.

    Parameters
    ----------
    role : Role
        The role whose rights the account must have.
    progress : Callable[[int, int], object]
        Called by the check that reads all keys, with the total number of members and the number of
        members read so far.
    quick : bool
        Leave out the checks on Redis that ask workers or read many keys.

    Raises
    ------
    ConfigError
        A setting or the URL is invalid, or the broker is not of this package.
    """
    app = session.app
    found = Diagnosis(versions=_versions(), checks=["settings", "broker"])
    with app.connection_for_write() as connection:
        found.add("settings", settings.settings(app, connection))
    if finding := _unusable(session):
        found.add("broker", [finding])
    elif session.on_rabbitmq:
        with open_channel(app) as channel:
            found.versions["RabbitMQ"] = str(channel.connection.server_properties.get("version"))
            _run(
                found, {name: partial(each, app, channel) for name, each in RABBITMQ_CHECKS.items()}
            )
    else:
        options = Settings.from_options(app.conf.broker_transport_options)
        consumed = app.amqp.queues.consume_from
        stores = _reachable_stores(found, session.stores, consumed)
        subjects = [
            OnRedis(session, store, options, role, stores.own(store, consumed), progress)
            for store in stores
        ]
        if not subjects:
            return found
        found.versions |= _server_version(subjects[0])
        checks: dict[str, Check] = {name: partial(_look, name, subjects) for name in REDIS_CHECKS}
        if quick:
            checks = {name: each for name, each in checks.items() if name not in _SLOW_CHECKS}
        if not stores.has_one:
            checks["hash tags"] = partial(work.hash_tags, stores, options.revoke_expires)
        if session.stores.common is not stores.common:
            for name in _FIRST_TAG_CHECKS:
                checks[name] = _first_tag_unreachable
        _run(found, checks)
    return found


def _reachable_stores(found: Diagnosis, stores: Stores, consumed: Iterable[str]) -> Stores:
    """Return the stores whose masters answer. Every other master becomes a finding."""
    if stores.has_one:
        return stores
    found.checks.append("shards")
    queues = {*consumed}
    for each in masters_away(stores):
        stores = stores.without(each.tags)
        waiting = sorted(queue for queue in queues if not stores.has(queue))
        queues -= {*waiting}
        what = f"{each}"
        if waiting:
            what += f" (queues of this app: {', '.join(map(spelled, waiting))})"
        todo = "start it, or have a replica take over; its queues wait, and are not checked here"
        found.add("shards", [fault(what, todo)])
    return stores


def _first_tag_unreachable() -> Iterator[Finding]:
    """Yield that a check needs the first hash tag, whose master cannot be reached."""
    what = "the hash tag by which this is found is away"
    yield unknown(what, "run this again when all shards are there")


def _run(found: Diagnosis, checks: Mapping[str, Check]) -> None:
    for name, check in checks.items():
        found.checks.append(name)
        try:
            found.add(name, check())
        except (DelayQError, *BROKER_ERRORS, AMQPError, OSError) as exc:
            # A full server or a replica refuses several commands. One check reports the cause.
            lost = isinstance(exc, (BrokerUnavailable, OSError, AMQPConnectionError))
            # The "shards" check reports the outage. A broadcast to workers may fail on any shard.
            is_reported = any(each.check == "shards" for each in found.findings)
            todo = (
                "run this with an account that may (docs/accounts.md); a hosted Redis shows its "
                "settings on a page of its own"
                if is_denied(exc) or "unknown command" in str(exc)
                else "see the other findings, and run this again"
            )
            level = FAULT if lost and not is_reported else UNKNOWN
            found.add(name, [Finding(level, str(exc), todo)])
        except (ValueError, OverflowError):
            todo = "celery -A <app> delayq fsck shows what is wrong there"
            found.add(name, [unknown("a stored number cannot be read", todo)])


def _look(name: str, subjects: Sequence[OnRedis]) -> Iterator[Finding]:
    """Make a check of Redis for each subject to which it applies."""
    check = REDIS_CHECKS[name]
    if name in _JOINT_CHECKS:
        yield from check(*subjects)
        return
    if len(subjects) == 1 or name not in _SERVER_CHECKS:
        for subject in subjects[:1] if name in _SINGLE_CHECKS else subjects:
            yield from check(subject)
        return
    for subject in {str(each.info("server").get("run_id")): each for each in subjects}.values():
        for each in check(subject):
            yield replace(each, what=f"shard of {subject.store.keys.tag}: {each.what}")


def _unusable(session: Session) -> Finding | None:
    """Return why the broker does not answer, or cannot be used; None if it can.

    A refused command does not count if a check reports the refusal, such as the refusal of all
    writes.
    """
    todo = (
        "start it, or correct address, user or password in the URL; "
        "celery -A <app> delayq health --ready asks again"
    )

    def ask() -> str:
        nonlocal todo
        try:
            if session.on_rabbitmq:
                with open_channel(session.app):
                    return ""
            if session.stores.has_one:  # each master of a cluster has its own check
                session.now_ms()
        except UnsupportedServer as exc:
            todo = "docs/support.md lists the servers that are supported"
            return str(exc)
        except (CommandRefused, *BROKER_ERRORS, OSError) as exc:
            return describe_error(exc, session.app)
        return ""

    why = answer_within(session.app, ask, ANSWER_SECONDS)
    return fault(why, todo) if why else None


def _server_version(subject: OnRedis) -> dict[str, str]:
    try:
        name, version = name_and_version(subject.info("server"))
    except DelayQError:
        return {}
    return {name: version}


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


__all__ = [
    "FAULT",
    "NOTE",
    "RABBITMQ_CHECKS",
    "REDIS_CHECKS",
    "UNKNOWN",
    "WARNING",
    "Diagnosis",
    "Finding",
    "diagnose",
]
