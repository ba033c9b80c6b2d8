"""Real ``redis-sentinel`` processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError, ResponseError

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import ManagedProcess, wait_until
from tests.support import TIMEOUT

MASTER_NAME = "departures"


def replicated(
    start: Callable[..., EmbeddedRedis], password: str
) -> tuple[EmbeddedRedis, EmbeddedRedis]:
    """Start a master and its replica; either may become the other's replica."""
    options: dict[str, Any] = {"masterauth": password, "repl-diskless-sync-delay": 0}
    master = start(password=password, options=options)
    follows = {**options, "replicaof": f"127.0.0.1 {master.port}"}
    replica = start(password=password, options=follows)
    with replica.client() as client:
        wait_until(lambda: client.info()["master_link_status"] == "up", TIMEOUT, "the replica")
    return master, replica


class Sentinel(ManagedProcess):
    """One sentinel, which decides alone on a failover.

    Parameters
    ----------
    master
        The server to watch, as ``departures``.
    password
        Password of the master and its replicas.
    folder
        New folder for its log and its settings, which the sentinel itself writes.
    """

    def __init__(self, master: EmbeddedRedis, password: str, folder: Path) -> None:
        self.port = free_port()
        folder.mkdir()
        settings = folder / "sentinel.conf"
        settings.write_text(
            f"bind 127.0.0.1\n"
            f"port {self.port}\n"
            f"dir {folder}\n"
            f"sentinel monitor {MASTER_NAME} 127.0.0.1 {master.port} 1\n"
            f"sentinel auth-pass {MASTER_NAME} {password}\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} 1000\n"
            f"sentinel failover-timeout {MASTER_NAME} 5000\n"
        )
        command = [str(master.executable), str(settings), "--sentinel"]
        super().__init__(command, cwd=folder, log_file=folder / "sentinel.log", name="sentinel")

    def wait_ready(self, replicas: int = 0) -> None:
        """Wait until the sentinel sees the master and *replicas* replicas."""
        wait_until(
            lambda: self._sees(replicas), 20, lambda: f"the sentinel to be ready:\n{self.log}"
        )

    def fail_over(self) -> None:
        """Make a replica the master, as soon as the sentinel knows enough of one."""
        with Redis(port=self.port) as client:

            def begins() -> bool:
                try:
                    client.execute_command("SENTINEL", "FAILOVER", MASTER_NAME)
                except ResponseError as exc:
                    if "NOGOODSLAVE" not in str(exc):
                        raise
                    return False
                return True

            wait_until(begins, TIMEOUT, lambda: f"a replica that may take over:\n{self.log}")

    def master_port(self) -> int:
        """Return the port of the server that the sentinel sees as the master."""
        return int(self._master()["port"])

    def _sees(self, replicas: int) -> bool:
        if not self.running:
            raise RuntimeError(f"the sentinel has ended:\n{self.log}")
        try:
            master = self._master()
        except ConnectionError:
            return False
        return bool(
            master["is_master"]
            and not master["is_sdown"]
            and not master["is_disconnected"]
            and master["num-slaves"] >= replicas
        )

    def _master(self) -> dict[str, Any]:
        with Redis(port=self.port) as client:
            state: dict[str, Any] = client.sentinel_master(MASTER_NAME)
            return state
