"""A RabbitMQ node in the place of pytest-celery's RabbitMQ container."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kombu import Connection

from celery_delayq.embedded.child_process import log_from
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import EmbeddedServerError
from celery_delayq.testing.nodes import ServerContainer
from celery_delayq.testing.wait import wait_until


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

    def __init__(self, *, scheme: str = "amqp", env: Mapping[str, str]) -> None:
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
