"""A real Redis Cluster: masters with one replica each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.cluster import (
    ask,
    find_cluster_server,
    form_cluster,
    is_cluster_up,
    node_options,
)
from celery_delayq.model.cluster_tags import SLOTS, cluster_tags, slot_of, tag_of
from celery_delayq.store.cluster.nodes import Nodes
from celery_delayq.store.cluster.slots import Address
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT

MASTERS = 3

TAGS = cluster_tags(12)
#: One queue for each tag.
QUEUES = {tag_of(f"q{number}", TAGS): f"q{number}" for number in range(200)}


def place_of(slot: int) -> int:
    """Return the number of the master that has a slot in a new cluster."""
    return slot * MASTERS // SLOTS


def spread(tags: Sequence[str]) -> tuple[str, ...]:
    """Return queues on different masters. Celery's default queue is one of them."""
    names = (*QUEUES.values(), "celery")
    return tuple({place_of(slot_of(tag_of(name, tags))): name for name in names}.values())


SPREAD = spread(TAGS)

_turns = cycle(SPREAD)


def in_turn(*_: Any, **__: Any) -> dict[str, str]:
    """Route tasks without a named queue to each of these queues in turn."""
    return {"queue": next(_turns)}


@dataclass(frozen=True)
class Cluster:
    """Masters and their replicas, in the same order."""

    masters: list[EmbeddedRedis]
    replicas: list[EmbeddedRedis]

    @classmethod
    def start(cls, start: Callable[..., EmbeddedRedis], *, node_timeout_ms: int = 1000) -> Cluster:
        """Start the servers; wait until all of them know the cluster and all replicas follow.

        Parameters
        ----------
        start
            Starts a server that ends with the test.
        node_timeout_ms
            After this time a replica takes the place of a silent master.
        """
        program = find_cluster_server()

        def node() -> EmbeddedRedis:
            options = node_options(node_timeout_ms=node_timeout_ms)
            return start(appendonly=False, executable=program, options=options)

        servers = [node() for _ in range(2 * MASTERS)]
        self = cls(servers[:MASTERS], servers[MASTERS:])
        form_cluster(self.masters, self.replicas, timeout=TIMEOUT)
        return self

    @property
    def addresses(self) -> list[Address]:
        """The first addresses of the masters."""
        return [Address(each.host, each.port) for each in self.masters]

    @property
    def url(self) -> str:
        """The broker URL with all masters."""
        return ";".join(each.url_for("delayq+rediscluster") for each in self.masters)

    def nodes(self, **options: Any) -> Nodes:
        """Return a new view of the cluster."""
        return Nodes(self.addresses, **options)

    def is_cluster_up(self) -> bool:
        """Return whether all slots are served and all replicas follow."""
        return is_cluster_up(self.masters, self.replicas)

    def is_served(self) -> bool:
        """Return whether each running server says that all slots are served."""
        running = [each for each in (*self.masters, *self.replicas) if each.running]
        return all(b"cluster_state:ok" in ask(each, "INFO") for each in running)

    def all_follow(self) -> bool:
        """Return whether all servers run, and all replicas follow a master."""
        roles = []
        for each in (*self.masters, *self.replicas):
            with each.client() as client:
                roles.append(client.role())
        followers = [role for role in roles if role[0] != b"master"]
        return len(followers) == MASTERS and all(b"connected" in role for role in followers)

    def master_of(self, slot: int) -> EmbeddedRedis:
        """Return the server that has a slot in a new cluster."""
        return self.masters[place_of(slot)]

    def replica_of(self, master: EmbeddedRedis) -> EmbeddedRedis:
        """Return the server that follows a master in a new cluster."""
        return self.replicas[self.masters.index(master)]

    def wait_taken_over(self, master: EmbeddedRedis) -> None:
        """Wait until a replica has replaced its master, and all servers know it."""

        def is_master() -> bool:
            with self.replica_of(master).client() as client:
                return bool(client.role()[0] == b"master")

        wait_until(is_master, TIMEOUT, "the replica takes over")
        wait_until(self.is_served, TIMEOUT, "all nodes know")

    @contextmanager
    def without(self, tag: str) -> Iterator[None]:
        """Let no node serve the slot of a hash tag during the ``with`` block."""
        slot = slot_of(tag)
        ask(self.master_of(slot), "DELSLOTS", slot)
        try:
            yield
        finally:
            ask(self.master_of(slot), "ADDSLOTS", slot)

    def begin_move(
        self, slot: int, target: EmbeddedRedis, source: EmbeddedRedis | None = None
    ) -> None:
        """Begin to move a slot: its source redirects clients that ask for a missing key."""
        source = source or self.master_of(slot)
        ask(target, "SETSLOT", slot, "IMPORTING", ask(source, "MYID").decode())
        ask(source, "SETSLOT", slot, "MIGRATING", ask(target, "MYID").decode())

    def finish_move(
        self, slot: int, target: EmbeddedRedis, source: EmbeddedRedis | None = None
    ) -> None:
        """Move the keys of a slot, and the slot itself."""
        source = source or self.master_of(slot)
        with source.client() as client:
            while names := ask(source, "GETKEYSINSLOT", slot, 100):
                client.execute_command(
                    "MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *names
                )
        owner = ask(target, "MYID").decode()
        for each in (target, source):
            ask(each, "SETSLOT", slot, "NODE", owner)
