"""pytest-celery's containers as processes on this machine.

pytest-celery's nodes (`CeleryTestBroker`, `CeleryTestBackend`, `CeleryTestWorker`), clusters and
setup reach what they stand for only through a container object. The containers here answer the same
calls with processes: nodes, clusters, setup and the suites written for them stay as they are.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_celery import CeleryTestContainer
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.processes import ManagedProcess
from celery_delayq.testing.workers import READY_LINE

_READY_SECONDS = 60.0
# The server is given these by itself, and a container's values would open it to the network.
_NOT_FOR_THE_SERVER = {"bind", "port", "dir", "protected-mode", "daemonize", "logfile"}


class ProcessContainer(CeleryTestContainer):
    """What a Docker container is to pytest-celery, for a process.

    Parameters
    ----------
    kind
        Part of its name.
    """

    def __init__(self, kind: str) -> None:
        # On purpose without the parent's: that one wants an object of the Docker client.
        self._id = uuid.uuid4().hex * 2
        self._name = f"{kind}-{self._id[:12]}"

    @property
    def id(self) -> str:
        """A unique name of 64 characters; the first twelve are the host name."""
        return self._id

    @property
    def name(self) -> str:
        """A unique name for people."""
        return self._name

    @property
    def status(self) -> str:
        """``running`` or ``exited``."""
        return "running" if self._running() else "exited"

    @property
    def attrs(self) -> dict[str, Any]:
        """The few of Docker's attributes that suites look at."""
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Config": {"Hostname": self.id[:12], "Env": [f"{k}={v}" for k, v in self.env.items()]},
            "State": {"Status": self.status, "Running": self._running(), "Pid": self.pid},
        }

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that it was given."""
        return {}

    @property
    def pid(self) -> int:
        """Process id on this machine; 0 when it does not run, as Docker says it."""
        raise NotImplementedError

    def reload(self) -> None:
        """Do nothing: what is told is always the present state."""

    def remove(self, *_arguments: Any, **_options: Any) -> None:
        """End it, and remove its files."""
        raise NotImplementedError

    def _running(self) -> bool:
        return self.pid != 0

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


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
        env: Mapping[str, str] | None = None,
        executable: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__("redis")
        self._scheme = scheme
        self._env = dict(env or {})
        options = _server_options(command)
        self.server = EmbeddedRedis(
            executable=executable,
            appendonly=options.pop("appendonly", "no") == "yes",
            appendfsync=options.pop("appendfsync", "everysec"),
            password=options.pop("requirepass", None),
            options=options,
        )
        self.server.start()

    @property
    def pid(self) -> int:
        """Process id; 0 when it does not run."""
        return self.server.pid if self.server.running else 0

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that it was given."""
        return self._env

    @property
    def client(self) -> Redis:
        """A client that decodes answers."""
        return self.server.client(decode_responses=True)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """What pytest-celery asks of a broker or backend: URLs, host, port and database."""
        return {
            "url": self.url,
            "host_url": self.host_url,
            "hostname": self.hostname,
            "port": self.port,
            "vhost": self.vhost,
        }

    @property
    def url(self) -> str:
        """URL for workers; the same as for tests, since both run on this machine."""
        return self.server.url_for(self._scheme)

    @property
    def host_url(self) -> str:
        """URL for tests."""
        return self.url

    @property
    def hostname(self) -> str:
        """Always 127.0.0.1."""
        return self.server.host

    @property
    def port(self) -> int:
        """TCP port; the same after a restart."""
        return self.server.port

    @property
    def vhost(self) -> str:
        """Database number."""
        return "0"

    def version(self) -> str:
        """Version of the server program."""
        return self.server.version

    def prefix(self) -> str:
        """Scheme with ``://``."""
        return f"{self._scheme}://"

    @property
    def ready_prompt(self) -> str:
        """What a server logs when it is ready."""
        return "Ready to accept connections"

    def logs(self) -> str:
        """All that the server has logged."""
        return self.server.log_file.read_text(errors="replace")

    def ready(self) -> bool:
        """Wait until the server answers (EmbeddedRedisError if it does not)."""
        self.server.wait_ready()
        return True

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal, SIGKILL by default; wait for the end if it is one that ends a server."""
        number = _signal_number(signal)
        os.kill(self.server.pid, number)
        if number in _ENDING:
            self.server.wait(_READY_SECONDS)

    def stop(self, timeout: float = 10) -> None:
        """Shut the server down and keep its data."""
        self.server.stop(timeout)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.server.start()

    def restart(self, timeout: float = 10) -> None:
        """Stop and start the server, and wait until it answers."""
        self.server.restart(timeout)

    def remove(self, *_arguments: Any, **_options: Any) -> None:
        """End the server and remove its data."""
        self.server.close()


class WorkerProcessContainer(ProcessContainer):
    """A real worker in the place of ``CeleryWorkerContainer``.

    Command, environment and files are those that pytest-celery's fixtures make for the container.
    The files are written to a folder of its own, which the worker runs in.

    Parameters
    ----------
    container_cls
        The suite's container class, asked for version, log level, worker name and queue.
    command
        ``celery -A app worker …``.
    env
        Environment variables of the worker.
    content
        Path to content of the files.
    """

    def __init__(
        self,
        *,
        container_cls: type[Any],
        command: Sequence[str],
        env: Mapping[str, str],
        content: Mapping[str, bytes],
    ) -> None:
        super().__init__("worker")
        self._cls = container_cls
        self._folder = tempfile.TemporaryDirectory(prefix="delayq-worker-")
        app_folder = Path(self._folder.name, "app")
        for path, text in content.items():
            file = app_folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
        inherited = os.environ.get("PYTHONPATH", "")
        self._env = {
            **env,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(app_folder), inherited])),
        }
        self.process = ManagedProcess(
            # %h is the container's own host name, by which the node addresses it.
            [part.replace("%h", self.id[:12]) for part in _on_this_python(command)],
            env=self._env,
            cwd=app_folder,
            log_file=Path(self._folder.name, "worker.log"),
            name=self.name,
        )
        self.process.start()

    @property
    def pid(self) -> int:
        """Process id of the worker's main process; 0 when it does not run."""
        return self.process.pid if self.process.running else 0

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that it was given."""
        return self._env

    def version(self) -> str:
        """Celery version: of the class if it names one, else the installed one."""
        import celery

        return str(self._cls.version() or celery.__version__)

    def log_level(self) -> str:
        """Log level of the worker."""
        return str(self._cls.log_level())

    def worker_name(self) -> str:
        """Worker name, the part before ``@``."""
        return str(self._cls.worker_name())

    def worker_queue(self) -> str:
        """Queue that the worker consumes."""
        return str(self._cls.worker_queue())

    @property
    def ready_prompt(self) -> str:
        """What a worker logs when it is ready."""
        return "ready."

    def logs(self) -> str:
        """All that the worker has written, over all its starts."""
        return self.process.log

    def ready(self) -> bool:
        """Wait until the worker consumes (ProcessFailed if it ends or takes too long)."""
        self.process.wait_log(READY_LINE, _READY_SECONDS)
        return True

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal; SIGKILL, the default, ends the children too, as with a container."""
        number = _signal_number(signal)
        if number == _SIGKILL:
            self.process.kill()
        else:
            self.process.send_signal(number)

    def stop(self, timeout: float = 10) -> None:
        """Stop the worker by SIGTERM, after `timeout` seconds by SIGKILL."""
        self.process.stop(timeout)

    def start(self) -> None:
        """Start the worker and wait until it consumes."""
        self.process.start()
        self.ready()

    def restart(self, timeout: float = 10) -> None:
        """Stop and start the worker, and wait until it consumes."""
        self.stop(timeout)
        self.start()

    def wait(self, timeout: float = _READY_SECONDS) -> dict[str, int]:
        """Wait until the worker has ended; return its exit code as Docker does."""
        return {"StatusCode": self.process.wait(timeout)}

    def exec_run(self, command: str | Sequence[str], **_options: Any) -> tuple[int, bytes]:
        """Run a command in the worker's folder and environment; return exit code and output."""
        parts = shlex.split(command) if isinstance(command, str) else command
        done = subprocess.run(
            _on_this_python(parts),
            env={**os.environ, **self._env, "DELAYQ_WORKER_PID": str(self.pid)},
            cwd=self.process.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_READY_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout

    def remove(self, *_arguments: Any, **_options: Any) -> None:
        """End the worker and remove its files."""
        self.process.kill()
        self._folder.cleanup()


_SIGKILL = int(signal.SIGKILL)
_ENDING = {_SIGKILL, int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGQUIT)}


def _signal_number(wish: str | int | None) -> int:
    if wish is None:
        return _SIGKILL
    if isinstance(wish, int):
        return int(wish)
    if wish.isdigit():
        return int(wish)
    name = wish.upper()
    return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])


def _on_this_python(command: Sequence[str]) -> list[str]:
    program, *arguments = command
    if program == "celery":
        return [sys.executable, "-m", "celery", *arguments]
    if re.fullmatch(r"python[\d.]*", program):
        return [sys.executable, *arguments]
    return [program, *arguments]


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
