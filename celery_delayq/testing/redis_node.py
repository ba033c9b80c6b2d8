"""A Redis server in the place of pytest-celery's Redis container."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.nodes import SIGKILL, ProcessContainer, signal_number

_STOP_SECONDS = 60.0
_ENDING = {SIGKILL, int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGQUIT)}
# The server gets these from `EmbeddedRedis`. A container's values would open it to the network.
_NOT_FOR_THE_SERVER = {"bind", "port", "dir", "protected-mode", "daemonize", "logfile"}


class RedisProcessContainer(ProcessContainer):
    """A private Redis in the place of ``RedisContainer``.

    Parameters
    ----------
    scheme
        Scheme of its URL for Celery, such as ``delayq+redis``.
    command
        ``redis-server`` and arguments, as for the container; the options in it are used, apart from
        those that say where to listen and where to keep data.
    env
        Kept to be looked at.
    executable
        Server program; the default is what `find_redis_server` finds.
    """

    def __init__(
        self,
        *,
        scheme: str = "redis",
        command: Sequence[str] = (),
        env: Mapping[str, str],
        executable: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__("redis", env)
        self._scheme = scheme
        options = _server_options(command)
        self.process: EmbeddedRedis = EmbeddedRedis(
            executable=executable,
            appendonly=options.pop("appendonly", "no") == "yes",
            appendfsync=options.pop("appendfsync", "everysec"),
            password=options.pop("requirepass", None),
            options=options,
        )
        self.process.start()

    @property
    def client(self) -> Redis:
        """A client that decodes answers."""
        return self.process.client(decode_responses=True)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """What pytest-celery asks of a broker or backend: URLs, host, port and database."""
        names = ("url", "host_url", "hostname", "port", "vhost")
        return {name: getattr(self, name) for name in names}

    @property
    def url(self) -> str:
        """URL for workers; the same as for tests, since both run on this machine."""
        return self.process.url_for(self._scheme)

    #: URL for tests.
    host_url = url

    @property
    def hostname(self) -> str:
        """Always 127.0.0.1."""
        return self.process.host

    @property
    def port(self) -> int:
        """TCP port; the same after a restart."""
        return self.process.port

    @property
    def vhost(self) -> str:
        """Database number."""
        return "0"

    def version(self) -> str:
        """Version of the server program."""
        return self.process.version

    def _published_ports(self) -> dict[str, list[dict[str, str]]]:
        return {"6379/tcp": [{"HostIp": self.hostname, "HostPort": str(self.port)}]}

    def prefix(self) -> str:
        """Scheme with ``://``."""
        return f"{self._scheme}://"

    @property
    def ready_prompt(self) -> str:
        """What a server logs when it is ready."""
        return "Ready to accept connections"

    def logs(self) -> str:
        """All that the server has logged."""
        return self.process.log_file.read_text(errors="replace")

    def ready(self) -> bool:
        """Wait until the server answers (EmbeddedRedisError if it does not)."""
        self.process.wait_ready()
        return True

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal, SIGKILL by default; wait for the end if it is one that ends a server."""
        number = signal_number(signal)
        os.kill(self.process.pid, number)
        if number in _ENDING:
            self.process.wait(_STOP_SECONDS)

    def remove(self, *_arguments: Any, **_options: Any) -> None:
        """End the server and remove its data."""
        self.process.close()


def _server_options(command: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    name = ""
    for part in list(command)[1:]:
        if part.startswith("--"):
            name = part[2:]
            options[name] = ""
        elif name:
            options[name] = f"{options[name]} {part}".strip()
    return {name: value for name, value in options.items() if name not in _NOT_FOR_THE_SERVER}
