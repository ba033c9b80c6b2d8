"""A child process that writes its output to a file and ends with this process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from celery_delayq.embedded.child_process import ChildProcess, log_from, spawn
from celery_delayq.testing.wait import seconds_of, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self


class ProcessFailed(RuntimeError):
    """A process ended or timed out; the message ends with its output."""


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; zombies have ended, too."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class ManagedProcess:
    """A program in a process group of its own; a context manager that starts and ends it.

    Parameters
    ----------
    command
        Program and arguments.
    env
        Variables in addition to those of this process.
    cwd
        Folder to run in.
    log_file
        File that standard output and error are appended to; the default is a temporary one.
    name
        Name of the process in errors.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        log_file: str | os.PathLike[str] | None = None,
        name: str = "",
    ) -> None:
        self.command = list(command)
        self.env = {"PYTHONUNBUFFERED": "1", **(env or {})}
        self.cwd = Path(cwd or Path.cwd())
        self.name = name or Path(self.command[0]).name
        self._child = ChildProcess(self, "KILL", "" if log_file else "delayq-process-")
        self.log_file = Path(log_file or (self._child.temp_dir or self.cwd) / "output.log")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else f"returncode {self.returncode}"
        return f"<{type(self).__name__} {self.name}, {state}>"

    def start(self) -> Self:
        """Start the program; do nothing if it already runs."""
        if not self.running:
            self._child.start(self._spawn, self.log_file)
        return self

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return spawn(self.command, log, env=self.env, cwd=self.cwd)

    # -- state --------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the main process is alive."""
        return self._child.running

    @property
    def pid(self) -> int:
        """Process id of the main process (ProcessFailed before the first start)."""
        return self._popen().pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal's number; None while it runs and before the start."""
        return self._child.returncode

    @property
    def log(self) -> str:
        """The output of all starts."""
        return log_from(self.log_file, 0)

    @property
    def log_since_start(self) -> str:
        """The output since the last start."""
        return self._child.log_since_start

    def wait_log(self, pattern: str, timeout: float | None = None) -> re.Match[str]:
        """Wait until `pattern` is found in the output since the last start.

        Parameters
        ----------
        pattern
            Regular expression; ``^`` and ``$`` match at lines.
        timeout
            Seconds, as for `wait_until`.

        Raises
        ------
        ProcessFailed
            The process ended, or the time is over.
        """
        compiled = re.compile(pattern, re.MULTILINE)

        def find_match() -> re.Match[str] | None:
            # Read before the log: an ended process writes nothing more.
            has_ended = not self.running
            match = compiled.search(self.log_since_start)
            if has_ended and not match:
                raise self._failure(
                    f"ended with code {self.returncode} before it wrote {pattern!r}"
                )
            return match

        try:
            match = wait_until(find_match, timeout, f"{pattern!r} in the log")
        except TimeoutError as error:
            raise self._failure(str(error)) from None
        assert match is not None
        return match

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the main process has ended, and return its exit code.

        Raises
        ------
        ProcessFailed
            The process still runs after `timeout` seconds.
        """
        try:
            return self._popen().wait(seconds_of(timeout))
        except subprocess.TimeoutExpired as error:
            raise self._failure(f"still runs after {error.timeout:g} s") from None

    # -- ending it ----------------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        """Send a signal to the main process alone."""
        self._popen().send_signal(number)

    def term(self) -> None:
        """Send SIGTERM to the main process, and do not wait."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its children at once (SIGKILL), as a power cut would."""
        self._child.end()

    def kill_parent(self) -> None:
        """End the main process alone (SIGKILL), as the out-of-memory killer does."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def stop(self, timeout: float | None = None) -> int | None:
        """End the process by SIGTERM, after `timeout` seconds by SIGKILL; return its exit code.

        Remaining children are killed.
        """
        self._child.end(seconds_of(timeout))
        return self.returncode

    def restart(self, timeout: float | None = None) -> Self:
        """Stop the process as `stop` does, and start it again."""
        self.stop(timeout)
        return self.start()

    def _popen(self) -> subprocess.Popen[bytes]:
        if self._child.process is None:
            raise ProcessFailed(f"{self.name} was not started: call start()")
        return self._child.process

    def _failure(self, reason: str) -> ProcessFailed:
        tail = self._child.log_tail()
        return ProcessFailed(f"{self.name}: {reason}. The end of its output:\n{tail}")
