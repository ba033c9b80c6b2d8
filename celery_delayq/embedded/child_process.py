"""A child process that ends with this process and writes its output to a file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

#: Seconds to wait for a process after SIGTERM, when Python ends or the owner is collected.
_END_SECONDS = 10.0

#: Ends a process group when its standard input closes, unless it has read a line before. Arguments:
#: the name of the signal, the id of the group, and a folder to remove, or "".
_WATCH_SCRIPT = """\
read -r word && exit
kill -s "$1" -- "-$2"
tries=0
while kill -s 0 -- "-$2" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -eq 100 ] && kill -s KILL -- "-$2"
    [ "$tries" -ge 110 ] && break
    sleep 0.1
done
[ -z "$3" ] || rm -rf -- "$3"
"""


class ChildProcess:
    """A process group and its temporary folder, if it has one.

    If this Python process is killed, a shell ends the group, and kills it after 10 seconds. The
    shell reads from a pipe whose other end only this process has. The pipe closes when this process
    ends, also by SIGKILL. A child made by ``os.fork`` has that end, too: then the group ends with
    the last of these processes.

    The object has no reference to its owner, so the finalizer of the owner may refer to it.

    Parameters
    ----------
    owner : object
        When the owner is collected, or Python ends, the group is ended and the folder removed.
    signal_name : str
        The signal that ends the group if this process is killed: ``"TERM"`` or ``"KILL"``.
    temp_prefix : str
        Prefix of the name of a temporary folder; ``""``: no such folder.
    """

    def __init__(self, owner: object, signal_name: str, temp_prefix: str = "") -> None:
        self._pid = os.getpid()
        self._signal_name = signal_name
        #: The main process, running or ended; None before the first start.
        self.process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._log_file: Path | None = None
        self._log_start = 0
        self.temp_dir = Path(tempfile.mkdtemp(prefix=temp_prefix)) if temp_prefix else None
        #: Ends the process and removes the folder for good.
        self.close = weakref.finalize(owner, self._release)

    def start(self, spawn: Callable[[IO[bytes]], subprocess.Popen[bytes]], log_file: Path) -> None:
        """End the last process, and start one by *spawn*, which gets the open log file."""
        self.end()
        self._log_file = log_file
        self._log_start = log_file.stat().st_size if log_file.exists() else 0
        with log_file.open("ab") as log:
            self.process = spawn(log)
        group, folder = str(self.process.pid), self.temp_dir or ""
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH_SCRIPT, "delayq-lifeline", self._signal_name, group, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the group of this process must not end the shell
        )

    @property
    def running(self) -> bool:
        """Whether the main process is alive."""
        return self.process is not None and self.process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal's number; None while it runs or was never started."""
        return self.process.poll() if self.process else None

    def end(self, timeout: float = 0.0) -> None:
        """End the main process by SIGTERM, after *timeout* seconds the whole group by SIGKILL."""
        process = self.process
        # A forked child has a copy of this object and no right to end its parent's process.
        if process is None or self._pid != os.getpid():
            return
        if timeout and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout)
        # The id of an ended process with an empty group may belong to another process now.
        is_reused = process.poll() is not None and _exists(process.pid)
        if not is_reused:
            # macOS answers EPERM if the group has only a zombie.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._watch is not None:
            try:
                self._watch.communicate(b"released\n")
            except (OSError, ValueError):
                self._watch.kill()
                self._watch.wait()
            self._watch = None

    @property
    def log_since_start(self) -> str:
        """The output of the process since its start."""
        return "" if self._log_file is None else log_from(self._log_file, self._log_start)

    def log_tail(self) -> str:
        """Return the last 40 lines of the output since the start, for an error."""
        return "\n".join(self.log_since_start.splitlines()[-40:]) or "(nothing)"

    def _release(self) -> None:
        if self._pid != os.getpid():
            return
        self.end(_END_SECONDS if self._signal_name == "TERM" else 0.0)
        if self.temp_dir is not None:
            shutil.rmtree(self.temp_dir, ignore_errors=True)


def spawn(
    command: Sequence[str | os.PathLike[str]],
    log: IO[bytes],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own, with its output in a log file.

    Parameters
    ----------
    env : Mapping[str, str] | None
        Variables in addition to those of this process.
    stdin : int
        As for ``subprocess.Popen``.
    """
    return subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=stdin,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a Ctrl-C that is meant for Python must not end the program
    )


def log_from(log_file: Path, position: int) -> str:
    """Return the text of a log file from a position in bytes."""
    if not log_file.exists():
        return ""
    with log_file.open("rb") as log:
        log.seek(position)
        return log.read().decode(errors="replace")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user
    return True
