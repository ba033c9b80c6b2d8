"""pytest-celery's containers as processes on this machine.

pytest-celery's nodes (`CeleryTestBroker`, `CeleryTestBackend`, `CeleryTestWorker`), clusters and
setup use a container object for all they do. The containers here have the same methods and use
processes. So nodes, clusters, setup and suites for them work without a change.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Mapping
from typing import Any

from pytest_celery import CeleryTestContainer
from pytest_docker_tools.wrappers.container import IpMap, PortMap

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.testing.processes import ManagedProcess


class ProcessContainer(CeleryTestContainer):
    """A process with the methods of a Docker container that pytest-celery uses.

    Parameters
    ----------
    kind
        Part of its name.
    env
        The environment variables of the container.
    """

    #: The process that replaces the container.
    process: EmbeddedRedis | EmbeddedRabbitMQ | ManagedProcess
    #: A unique name of 64 characters; the first twelve are the host name.
    id = ""
    #: A unique name for people.
    name = ""

    def __init__(self, kind: str, env: Mapping[str, str]) -> None:
        # Without super().__init__(), which needs an object of the Docker client.
        self.id = uuid.uuid4().hex * 2
        self.name = f"{kind}-{self.id[:12]}"
        self._env = dict(env)
        # These two read only `attrs`.
        self.ips, self.ports = IpMap(self), PortMap(self)

    @property
    def status(self) -> str:
        """``running`` or ``exited``."""
        return "running" if self.process.running else "exited"

    @property
    def attrs(self) -> dict[str, Any]:
        """The few attributes of a Docker container that suites read."""
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Config": {"Hostname": self.id[:12], "Env": [f"{k}={v}" for k, v in self.env.items()]},
            "NetworkSettings": {"Networks": {}, "Ports": self._published_ports()},
            "State": {
                "Status": self.status,
                "Running": self.process.running,
                "Paused": False,
                "Restarting": False,
                "OOMKilled": False,
                "Dead": False,
                "Pid": self.pid,
                "ExitCode": docker_exit_code(self.returncode),
                "Error": "",
            },
        }

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of the container."""
        return self._env

    @property
    def pid(self) -> int:
        """Process id on this machine; 0 when the process does not run, as in Docker."""
        return self.process.pid if self.process.running else 0

    @property
    def returncode(self) -> int | None:
        """Exit code of the last run, or minus the signal's number; None while the process runs."""
        return self.process.returncode

    def reload(self) -> None:
        """Do nothing: all properties are always current."""

    def get_addr(self, port: str) -> tuple[str, int]:
        """Return host and port of a container's port such as ``6379/tcp``."""
        [binding] = self.attrs["NetworkSettings"]["Ports"][port]
        return binding["HostIp"], int(binding["HostPort"])

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.process.start()
        self.ready()

    def stop(self, timeout: float = 10) -> None:
        """End the process by SIGTERM, after `timeout` seconds by SIGKILL; its files stay."""
        self.process.stop(timeout=timeout)

    def restart(self, timeout: float = 10) -> None:
        """Stop and start the process, and wait until it is ready."""
        self.stop(timeout)
        self.start()

    def remove(self, *_arguments: Any, **_options: Any) -> None:
        """End the process and remove its files."""
        raise NotImplementedError

    def _published_ports(self) -> dict[str, list[dict[str, str]]]:
        return {}

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


SIGKILL = int(signal.SIGKILL)


def signal_number(wish: str | int | None) -> int:
    """Return the number of a signal: SIGKILL for None, else a number or a name, as in Docker."""
    if wish is None:
        return SIGKILL
    if isinstance(wish, int) or wish.isdigit():
        return int(wish)
    name = wish.upper()
    return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])


def docker_exit_code(returncode: int | None) -> int:
    """Return Docker's exit code: 0 while the process runs, 128 + n after signal n."""
    if returncode is None:
        return 0
    return 128 - returncode if returncode < 0 else returncode
