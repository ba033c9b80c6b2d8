"""A Redis server in the place of pytest-celery's Redis container."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.nodes import ServerContainer

# The server gets these from `EmbeddedRedis`. A container's values would open it to the network.
_NOT_FOR_THE_SERVER = {"bind", "port", "dir", "protected-mode", "daemonize", "logfile"}


class RedisProcessContainer(ServerContainer):
    """A private Redis in the place of ``RedisContainer``.

    Parameters
    ----------
    scheme
        Scheme of its URL for Celery, such as ``delayq+redis``.
    command
        ``redis-server`` and arguments, as for the container. Options about addresses, ports and
        folders are ignored.
    env
        The environment variables of the container; the server does not use them.
    executable
        Server program; the default is what `find_redis_server` finds.
    """

    process: EmbeddedRedis
    end_signals = ServerContainer.end_signals | {signal.SIGINT, signal.SIGQUIT}

    def __init__(
        self,
        *,
        scheme: str = "redis",
        command: Sequence[str] = (),
        env: Mapping[str, str],
        executable: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__("redis", env, scheme)
        options = _server_options(command)
        self.process = EmbeddedRedis(
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
    def url(self) -> str:
        """URL for workers and tests."""
        return self.process.url_for(self._scheme)

    @property
    def vhost(self) -> str:
        """Database number."""
        return "0"

    def version(self) -> str:
        """Version of the server program."""
        return self.process.version

    def _published_ports(self) -> dict[str, list[dict[str, str]]]:
        return {"6379/tcp": [{"HostIp": self.hostname, "HostPort": str(self.port)}]}

    @property
    def ready_prompt(self) -> str:
        """The log line of a server that is ready."""
        return "Ready to accept connections"

    def logs(self) -> str:
        """The log of all starts of the server."""
        return self.process.log_file.read_text(errors="replace")

    def ready(self) -> bool:
        """Wait until the server answers (EmbeddedRedisError after a timeout)."""
        self.process.wait_ready()
        return True


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
