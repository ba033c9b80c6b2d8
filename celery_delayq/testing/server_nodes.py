"""Private servers in the place of pytest-celery's Redis and RabbitMQ containers."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kombu import Connection
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.child_process import log_from
from celery_delayq.embedded.ports import HOST
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import EmbeddedServerError
from celery_delayq.testing.nodes import ProcessContainer, signal_number
from celery_delayq.testing.wait import wait_until

# The server gets these from `EmbeddedRedis`. A container's values would open it to the network.
_NOT_FOR_THE_SERVER = {"bind", "port", "dir", "protected-mode", "daemonize", "logfile"}


class ServerContainer(ProcessContainer):
    """A private server in the place of a broker's or backend's container.

    Parameters
    ----------
    kind
        Part of its name.
    env
        The environment variables of the container; the server does not use them.
    scheme
        Scheme of its URL for Celery, such as ``delayq+redis``.
    """

    process: EmbeddedRedis | EmbeddedRabbitMQ
    #: Signals that end the server.
    end_signals = frozenset({signal.SIGKILL, signal.SIGTERM})

    def __init__(self, kind: str, env: Mapping[str, str], scheme: str) -> None:
        super().__init__(kind, env)
        self._scheme = scheme

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """The values that pytest-celery reads of a broker or backend."""
        names = ("url", "host_url", "hostname", "port", "vhost")
        return {name: getattr(self, name) for name in names}

    @property
    def url(self) -> str:
        """URL for workers; the same as for tests, since both run on this machine."""
        raise NotImplementedError

    @property
    def host_url(self) -> str:
        """URL for tests."""
        return self.url

    @property
    def hostname(self) -> str:
        """Always 127.0.0.1."""
        return HOST

    @property
    def port(self) -> int:
        """TCP port; the same after a restart."""
        return self.process.port

    def prefix(self) -> str:
        """Scheme with ``://``."""
        return f"{self._scheme}://"

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal, SIGKILL by default. Wait for the end if the signal ends the server."""
        number = signal_number(signal)
        os.kill(self.process.pid, number)
        if number in self.end_signals:
            wait_until(lambda: not self.process.running, what="the end of the server")

    def remove(self, *_arguments: Any, **_options: Any) -> None:
        """End the server and remove its data."""
        self.process.close()


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
        Server program; None: what `find_redis_server` finds.
    """

    process: EmbeddedRedis
    end_signals = ServerContainer.end_signals | {signal.SIGINT, signal.SIGQUIT}

    def __init__(
        self,
        *,
        scheme: str,
        command: Sequence[str],
        env: Mapping[str, str],
        executable: str | None,
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


class RabbitMQProcessContainer(ServerContainer):
    """A private RabbitMQ, with its management API, in the place of ``RabbitMQContainer``.

    Parameters
    ----------
    scheme
        Scheme of its URL for Celery, such as ``delayq+amqp``.
    env
        The environment variables of the container; the server does not use them.
    """

    process: EmbeddedRabbitMQ

    def __init__(self, *, scheme: str, env: Mapping[str, str]) -> None:
        super().__init__("rabbitmq", env, scheme)
        self.process = EmbeddedRabbitMQ()
        self.start()

    @property
    def client(self) -> Connection:
        """A kombu connection."""
        return Connection(self.host_url)

    @property
    def url(self) -> str:
        """URL for workers and tests."""
        # The virtual host is a slash: pytest-celery replaces the last character of the URL.
        return f"{self.prefix()}guest:guest@{self.hostname}:{self.port}//"

    @property
    def vhost(self) -> str:
        """Virtual host."""
        return "/"

    def version(self) -> str:
        """Version of the server."""
        return str(self.process.ask("GET", "overview")["rabbitmq_version"])

    def _published_ports(self) -> dict[str, list[dict[str, str]]]:
        ports = {"5672/tcp": self.port, "15672/tcp": urlsplit(self.process.api_url()).port}
        return {
            name: [{"HostIp": self.hostname, "HostPort": str(port)}] for name, port in ports.items()
        }

    @property
    def ready_prompt(self) -> str:
        """The log line of a node that is ready."""
        return "Server startup complete"

    def logs(self) -> str:
        """The log of all starts of the node."""
        return log_from(self.process.log_file, 0)

    def ready(self) -> bool:
        """Wait until the node is ready; return whether it runs."""
        wait_until(
            lambda: not self.process.running or self.ready_prompt in self.process.log(),
            what=self.process.log,
        )
        return self.process.running

    def exec_run(self, command: str | Sequence[str], **_options: Any) -> tuple[int, bytes]:
        """Run ``rabbitmqctl``, the only supported program; return exit code and output."""
        program, *arguments = shlex.split(command) if isinstance(command, str) else command
        if program != "rabbitmqctl":
            return 127, f"{program}: only rabbitmqctl can be run".encode()
        try:
            return 0, self.process.control(*arguments).encode()
        except EmbeddedServerError as error:
            return 1, str(error).encode()


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
