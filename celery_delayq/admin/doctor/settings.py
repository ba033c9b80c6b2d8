"""Checks of the app: contradicting settings, missing packages and missing rights."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from celery import Celery

from celery_delayq.admin import accounts
from celery_delayq.admin.doctor.finding import UNKNOWN, WARNING, Finding, fault, unknown, warning
from celery_delayq.admin.doctor.subject import OnRedis
from celery_delayq.integration import app_warnings
from celery_delayq.store.server.acl import missing
from celery_delayq.store.store import layouts
from celery_delayq.utils.text import spelled

#: Rights that only checks need. A check without its right reports this.
_OPTIONAL_RIGHTS = ("+info", "+config|get")

#: Contradictions of Celery's settings, or with this package: condition, problem, what to do.
_CONTRADICTIONS: tuple[tuple[Any, str, str], ...] = (
    (
        lambda conf: conf.task_acks_late and not conf.task_reject_on_worker_lost,
        "task_acks_late without task_reject_on_worker_lost: a task whose process is killed is a "
        "dead letter, and does not run again",
        "DelayQ(app, at_least_once=True), which sets both",
    ),
    (
        lambda conf: conf.task_reject_on_worker_lost and not conf.task_acks_late,
        "task_reject_on_worker_lost has no effect without task_acks_late",
        "DelayQ(app, at_least_once=True), which sets both",
    ),
    (
        lambda conf: not conf.broker_connection_retry,
        "broker_connection_retry=False: workers end in each outage",
        "remove it",
    ),
    (
        lambda conf: conf.worker_prefetch_multiplier == 0,
        "worker_prefetch_multiplier=0: one worker takes all ready messages",
        "set 1, or 4",
    ),
)


def settings(app: Celery, connection: Any) -> Iterator[Finding]:
    """Settings must not contradict each other."""
    for text in app_warnings.problems(app, connection):
        what, _, todo = text.rpartition(". ")
        # This process cannot see whether celery beat runs.
        level = UNKNOWN if "celery beat has to run" in text else WARNING
        yield Finding(level, what or text, todo or "see docs/settings.md")
    for applies, what, todo in _CONTRADICTIONS:
        if applies(app.conf):
            yield warning(what, todo)
    delayq = (app.conf.broker_transport_options or {}).get("delayq", {})
    if delayq.get("dead_letters_archive") and find_spec("sqlalchemy") is None:
        yield fault(
            "dead_letters_archive is set, but SQLAlchemy is not installed: nothing is archived",
            'pip install "celery-delayq[sql]"',
        )


def queues(subject: OnRedis) -> Iterator[Finding]:
    """All processes must use the same ready lists."""
    ours = subject.store.layout
    for name, theirs in layouts(subject.store.registry()).items():
        if (theirs.sep, theirs.steps) != (ours.sep, ours.steps):
            yield fault(
                f"{spelled(name)}: other processes have priority_steps {[*theirs.steps]} and sep "
                f"{theirs.sep!r}, this app has {[*ours.steps]} and {ours.sep!r}: workers do not "
                "see all messages",
                "give all processes the same priority_steps and sep",
            )


def rights(subject: OnRedis) -> Iterator[Finding]:
    """The account must have all rights of its role."""
    keys, names = subject.store.keys, sorted(subject.queues)
    rules = accounts.rules(subject.role, names, prefix=keys.prefix, database=keys.database)
    # In a Redis Cluster, RedBeat's keys may be on any node, and nothing reads them.
    unasked = {*_OPTIONAL_RIGHTS, *(("~redbeat*",) if keys.tag else ())}
    found = missing(subject.store.client, [each for each in rules if each not in unasked])
    if found is None:
        yield unknown(
            "Redis does not allow MULTI, by which rights are tried",
            "ACL SETUSER <name> +@transaction",
        )
    elif found:
        yield fault(
            f"this account lacks, for a {subject.role}: {', '.join(found)}",
            "docs/accounts.md has the rules of each role (--role says which one this is)",
        )
