"""A Celery worker in the place of pytest-celery's worker container."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celery_delayq.testing.nodes import SIGKILL, ProcessContainer, docker_exit_code, signal_number
from celery_delayq.testing.processes import ManagedProcess
from celery_delayq.testing.wait import seconds_of
from celery_delayq.testing.workers import READY_LINE


class WorkerProcessContainer(ProcessContainer):
    """A real worker in the place of ``CeleryWorkerContainer``.

    Command, environment and files are those that pytest-celery's fixtures make for the container.
    The files are written to a temporary folder, in which the worker runs.

    Parameters
    ----------
    container_cls
        The suite's container class, with version, log level, worker name and queue.
    command
        ``celery -A app worker …``.
    env
        Environment variables of the worker.
    content
        The files: content by path.
    """

    def __init__(
        self,
        *,
        container_cls: type[Any],
        command: Sequence[str],
        env: Mapping[str, str],
        content: Mapping[str, bytes],
    ) -> None:
        super().__init__("worker", env)
        self._cls = container_cls
        self._folder = tempfile.TemporaryDirectory(prefix="delayq-worker-")
        app_folder = Path(self._folder.name, "app")
        for path, text in content.items():
            file = app_folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
        inherited = os.environ.get("PYTHONPATH", "")
        self._env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(app_folder), inherited]))
        self.process: ManagedProcess = ManagedProcess(
            # %h is the host name of the container, by which the node addresses the worker.
            [part.replace("%h", self.id[:12]) for part in _on_this_python(command)],
            env=self._env,
            cwd=app_folder,
            log_file=Path(self._folder.name, "worker.log"),
            name=self.name,
        )
        self.process.start()

    def version(self) -> str:
        """Celery version: that of the class, else the installed one."""
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
        """The log line of a worker that is ready."""
        return "ready."

    def logs(self) -> str:
        """The output of all starts of the worker."""
        return self.process.log

    def ready(self) -> bool:
        """Wait until the worker consumes (ProcessFailed if it ends, or after a timeout)."""
        self.process.wait_log(READY_LINE)
        return True

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal. SIGKILL, the default, ends the children, too, as with a container."""
        number = signal_number(signal)
        if number == SIGKILL:
            self.process.kill()
        else:
            self.process.send_signal(number)

    def wait(self, timeout: float | None = None) -> dict[str, int]:
        """Wait until the worker has ended; return its exit code as Docker does."""
        return {"StatusCode": docker_exit_code(self.process.wait(timeout))}

    def exec_run(self, command: str | Sequence[str], **_options: Any) -> tuple[int, bytes]:
        """Run a command in the worker's folder and environment; return exit code and output."""
        parts = shlex.split(command) if isinstance(command, str) else command
        done = subprocess.run(
            _on_this_python(parts),
            env={**os.environ, **self._env, "DELAYQ_WORKER_PID": str(self.pid)},
            cwd=self.process.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds_of(None),
            check=False,
        )
        return done.returncode, done.stdout

    def remove(self, *_arguments: Any, **_options: Any) -> None:
        """End the worker and remove its files."""
        self.process.kill()
        self._folder.cleanup()


def _on_this_python(command: Sequence[str]) -> list[str]:
    program, *arguments = command
    if program == "celery":
        # The script, because the system names the process and its children after it.
        script = Path(sys.executable).with_name(program)
        installed = [str(script)] if script.exists() else [sys.executable, "-m", program]
        return [*installed, *arguments]
    if re.fullmatch(r"python[\d.]*", program):
        return [sys.executable, *arguments]
    return [program, *arguments]
