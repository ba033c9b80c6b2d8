"""A child process with its output in a file, that cannot outlive the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from celery_delayq.embedded.parent_watch import Lifeline
from celery_delayq.testing.wait import DEFAULT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG_TAIL_LINES = 40


class ProcessFailed(RuntimeError):
    """A process ended, or did not do in time what was waited for; ends with its output."""


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or only waits for its parent to take notice."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # of another user
    return True


@dataclass
class _Handle:
    owner: int
    temp_dir: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    lifeline: Lifeline | None = None

    def kill_group(self) -> None:
        if self.process is None or self.owner != os.getpid():
            return
        # A process id is given to another process when this one has ended and its group is empty.
        is_of_another = self.process.poll() is not None and _exists(self.process.pid)
        if not is_of_another:
            # macOS answers EPERM where only a zombie is left.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.lifeline is not None:
            self.lifeline.release()
            self.lifeline = None

    def release(self) -> None:
        if self.owner != os.getpid():
            return
        self.kill_group()
        if self.temp_dir is not None:
            shutil.rmtree(self.temp_dir, ignore_errors=True)


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
        What to call it in errors.
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
        self._log_start = 0
        self._handle = _Handle(owner=os.getpid())
        self._finalizer = weakref.finalize(self, self._handle.release)
        if log_file is None:
            self._handle.temp_dir = Path(tempfile.mkdtemp(prefix="delayq-process-"))
        self.log_file = Path(log_file or (self._handle.temp_dir or self.cwd) / "output.log")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else f"returncode {self.returncode}"
        return f"<{type(self).__name__} {self.name}, {state}>"

    def start(self) -> Self:
        """Start the program; do nothing if it already runs."""
        if self.running:
            return self
        self._handle.kill_group()
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            process = self._spawn(log)
        self._handle.process = process
        self._handle.lifeline = Lifeline(process.pid, "KILL", self._handle.temp_dir)
        return self

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            env={**os.environ, **self.env},
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    # -- state --------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the main process is alive."""
        return self._handle.process is not None and self._handle.process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the main process (ProcessFailed before the first start)."""
        return self._popen().pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal's number; None while it runs or was never started."""
        return self._handle.process.poll() if self._handle.process else None

    @property
    def log(self) -> str:
        """All that it has written, over all starts."""
        return self._log_from(0)

    @property
    def log_since_start(self) -> str:
        """All that it has written since it was last started."""
        return self._log_from(self._log_start)

    def wait_log(self, pattern: str, timeout: float = DEFAULT_TIMEOUT) -> re.Match[str]:
        """Wait until `pattern` is found in what it has written since its start.

        Parameters
        ----------
        pattern
            Regular expression; ``^`` and ``$`` match at lines.
        timeout
            Seconds.

        Raises
        ------
        ProcessFailed
            It ended, or the time is over.
        """
        wanted = re.compile(pattern, re.MULTILINE)

        def found_or_ended() -> tuple[re.Match[str] | None, bool] | None:
            # Looked at before the log: what it wrote last must not be missed.
            ended = not self.running
            match = wanted.search(self.log_since_start)
            return (match, ended) if match or ended else None

        try:
            match, _ = wait_until(found_or_ended, timeout, f"{pattern!r} in the log") or (
                None,
                True,
            )
        except TimeoutError as error:
            raise self._failure(str(error)) from None
        if match is None:
            raise self._failure(f"ended with code {self.returncode} before it wrote {pattern!r}")
        return match

    def wait(self, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Wait until the main process has ended, and return its exit code.

        Raises
        ------
        ProcessFailed
            It still runs after `timeout` seconds.
        """
        try:
            return self._popen().wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failure(f"still runs after {timeout:g} s") from None

    # -- ending it ----------------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        """Send a signal to the main process alone."""
        self._popen().send_signal(number)

    def term(self) -> None:
        """Ask the main process to end (SIGTERM), and do not wait."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its children at once (SIGKILL), as a power cut would."""
        self._handle.kill_group()

    def kill_parent(self) -> None:
        """End the main process alone (SIGKILL), as the out-of-memory killer does."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def stop(self, timeout: float = DEFAULT_TIMEOUT) -> int | None:
        """End it by SIGTERM, after `timeout` seconds by SIGKILL; return its exit code.

        Children that outlive it are killed.
        """
        if self.running:
            self.term()
            with suppress(subprocess.TimeoutExpired):
                self._popen().wait(timeout)
        self._handle.kill_group()
        return self.returncode

    def restart(self, timeout: float = DEFAULT_TIMEOUT) -> Self:
        """Stop it as `stop` does, and start it again."""
        self.stop(timeout)
        return self.start()

    def _popen(self) -> subprocess.Popen[bytes]:
        if self._handle.process is None:
            raise ProcessFailed(f"{self.name} was not started: call start()")
        return self._handle.process

    def _log_from(self, position: int) -> str:
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")

    def _failure(self, reason: str) -> ProcessFailed:
        tail = "\n".join(self.log_since_start.splitlines()[-_LOG_TAIL_LINES:])
        return ProcessFailed(
            f"{self.name}: {reason}. The end of its output:\n{tail or '(it wrote nothing)'}"
        )
