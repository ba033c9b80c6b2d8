"""Checks of the Redis server: settings that lose tasks, and causes of slowness and outages."""

from __future__ import annotations

import time
from collections.abc import Iterator

from celery_delayq.admin.doctor import round_trip
from celery_delayq.admin.doctor.finding import FAULT, WARNING, Finding, fault, warning
from celery_delayq.admin.doctor.subject import OnRedis
from celery_delayq.store.server.checks import EVICTION_TEXT, evicts

#: Largest difference of two clocks, in seconds.
MAX_CLOCK_SKEW_SECONDS = 1.0
#: Largest used share of memory and of connections.
MAX_USED_SHARE = 0.9
#: Most scripts in the cache of the server. This package has about 60 scripts.
MAX_SCRIPTS = 500


def role(subject: OnRedis) -> Iterator[Finding]:
    """The server must be a master."""
    if subject.info("replication").get("role") == "slave":
        yield fault(
            "this server is a replica: it refuses all writes",
            "let the URL lead to the master, or use delayq+sentinel://",
        )


def eviction(subject: OnRedis) -> Iterator[Finding]:
    """Redis must not evict keys, because eviction loses scheduled tasks."""
    policy = subject.config("maxmemory-policy")
    if evicts(policy):
        yield fault(
            (EVICTION_TEXT % policy).partition(";")[0],
            "CONFIG SET maxmemory-policy noeviction",
        )


def persistence(subject: OnRedis) -> Iterator[Finding]:
    """Scheduled tasks must survive a restart."""
    how = "CONFIG SET appendonly yes, and in redis.conf too"
    if subject.config("appendonly") == "yes":
        if subject.config("appendfsync") == "no":
            yield warning(
                "appendfsync no: a crash of the machine loses up to half a minute of tasks",
                "CONFIG SET appendfsync everysec",
            )
    elif save := subject.config("save"):
        what = f"appendonly no, save {save!r}: a crash loses all since the last snapshot"
        yield warning(what, how)
    else:
        what = "neither appendonly nor save: a restart loses everything"
        yield fault(what, how)


def disk(subject: OnRedis) -> Iterator[Finding]:
    """The last writes to disk must have succeeded."""
    info = subject.info("persistence")
    names = ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status")
    if failed := [name for name in names if info.get(name, "ok") != "ok"]:
        yield fault(
            f"Redis could not write to its disk ({', '.join(failed)}): it refuses writes, or loses "
            "them in a restart",
            "free disk space or fix the rights of its folder (see its log), then BGSAVE",
        )


def memory(subject: OnRedis) -> Iterator[Finding]:
    """Redis must have free memory."""
    info = subject.info("memory")
    used, most = info["used_memory"], info.get("maxmemory") or info.get("total_system_memory")
    if most and used > most * MAX_USED_SHARE:
        yield Finding(
            FAULT if used >= most else WARNING,
            f"Redis uses {used / most:.0%} of its memory; new tasks are refused when it is full",
            "raise maxmemory, or find what fills it: delayq stats, redis-cli --bigkeys",
        )


def connections(subject: OnRedis) -> Iterator[Finding]:
    """Redis must have free connections."""
    clients, most = subject.info("clients")["connected_clients"], subject.config("maxclients")
    if clients > int(most) * MAX_USED_SHARE:
        yield warning(
            f"{clients} of {most} connections are in use; more are refused",
            "CONFIG SET maxclients, or find who does not close them: CLIENT LIST",
        )


def cluster_replicas(subject: OnRedis) -> Iterator[Finding]:
    """Each master of a cluster must have a replica that can replace it."""
    if _is_in_cluster(subject) and not subject.info("replication").get("connected_slaves"):
        yield warning(
            "no replica follows this master: its queues wait for as long as it is away",
            "add one: redis-cli --cluster add-node, with --cluster-slave",
        )


def cluster_coverage(subject: OnRedis) -> Iterator[Finding]:
    """The loss of one master of a cluster must not stop the other masters."""
    if _is_in_cluster(subject) and subject.config("cluster-require-full-coverage") == "yes":
        yield warning(
            "cluster-require-full-coverage yes: while another master is away, this one refuses all "
            "commands too",
            "CONFIG SET cluster-require-full-coverage no at each node, and in redis.conf too",
        )


def _is_in_cluster(subject: OnRedis) -> bool:
    return bool(subject.info("cluster").get("cluster_enabled"))


def replicas(subject: OnRedis) -> Iterator[Finding]:
    """At least ``wait_replicas`` replicas must be connected."""
    wanted = subject.settings.wait_replicas
    there = subject.info("replication").get("connected_slaves", 0)
    if there < wanted:
        yield fault(
            f"wait_replicas is {wanted}, and {there} are connected: publishes raise NotReplicated",
            "start the replicas, or lower wait_replicas",
        )


def clock(subject: OnRedis) -> Iterator[Finding]:
    """The clocks must agree: due times use Redis' clock, ETAs use the clock of this machine."""
    before = time.time()
    theirs = subject.store.now_ms() / 1000
    after = time.time()
    skew = theirs - (before + after) / 2
    if abs(skew) > MAX_CLOCK_SKEW_SECONDS + (after - before) / 2:
        yield warning(
            f"Redis' clock is {abs(skew):,.1f} s {'ahead of' if skew > 0 else 'behind'} that of "
            "this machine: tasks with an eta run that much too "
            f"{'early' if skew > 0 else 'late'}",
            "synchronize both by NTP (timedatectl, chronyc tracking)",
        )


def latency(subject: OnRedis) -> Iterator[Finding]:
    """Redis must answer fast."""
    todo = "move workers and Redis closer; see SLOWLOG GET and redis-cli --intrinsic-latency"
    yield from round_trip.latency(subject.store.client.ping, todo)


def script_cache(subject: OnRedis) -> Iterator[Finding]:
    """Programs must not put values into the text of scripts, because each text fills the server."""
    number = subject.info("memory").get("number_of_cached_scripts", 0)
    if number > MAX_SCRIPTS:
        yield warning(
            f"the server keeps {number:,} scripts: a program puts values into their text",
            "find it (MONITOR, SLOWLOG GET) and give values as ARGV; SCRIPT FLUSH frees them, and "
            "this package sends its scripts again",
        )
