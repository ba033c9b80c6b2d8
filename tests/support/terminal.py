"""A shell in a real terminal of a given size, with tmux."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from celery_delayq.testing import wait_until
from tests.support.left_out import left_out

#: What the shell shows when it waits: how many commands it has run, and how the last one ended.
PROMPT = re.compile(r"^<(\d+):(\d+)>\$", re.MULTILINE)


def require_tmux() -> None:
    """Leave a test out where there is no tmux; with CI=true nothing is left out."""
    if shutil.which("tmux") is None:
        raise left_out("there is no tmux")


class Terminal:
    """bash in a terminal; a context manager that ends it and all that runs in it."""

    def __init__(self, columns: int, rows: int, cwd: Path, env: Mapping[str, str]) -> None:
        self.columns, self.rows = columns, rows
        self.cwd = cwd
        self._number = 1
        self._env = {"PS1": r"<\#:$?>$ ", "HISTFILE": "", "LC_ALL": "C.UTF-8", **env}
        # A server of its own, that knows nothing of other sessions.
        self._name = f"delayq-{os.getpid()}-{uuid4().hex[:8]}"
        #: What the shell and its programs write; the screen is only asked for when it has grown.
        self._output = cwd / f"{self._name}.out"
        self._shown, self._size = "", -1

    def __enter__(self) -> Terminal:
        shell = ["env", *(f"{n}={v}" for n, v in self._env.items()), "bash", "--norc", "-i"]
        size = ["-x", str(self.columns), "-y", str(self.rows), "-c", str(self.cwd)]
        history = ["set-option", "-g", "history-limit", "20000", ";"]
        self._tmux(
            "-f", "/dev/null", "start-server", ";", *history, "new-session", "-d", *size, *shell
        )
        self._tmux("pipe-pane", f"exec cat >{shlex.quote(str(self._output))}")
        self._wait_prompt(1)
        return self

    def __exit__(self, *_: object) -> None:
        socket = self._tmux("display-message", "-p", "#{socket_path}", check=False).strip()
        self._tmux("kill-server", check=False)
        if socket:
            Path(socket).unlink(missing_ok=True)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command, and return its exit code and what it wrote, as lines that were wrapped
        by the terminal are copied.
        """
        number = self.begin(command)
        return self.end(number)

    def begin(self, command: str) -> int:
        """Type a command, and return its number."""
        self._number = max(int(number) for number, _ in PROMPT.findall(self.text()))
        self.type(command)
        return self._number

    def end(self, number: int) -> tuple[int, str]:
        """Wait until a command has ended, as :meth:`run`."""
        code = self._wait_prompt(number + 1)
        return code, _written(self.text(), number).rpartition(f"<{number + 1}:")[0]

    def type(self, text: str, key: str = "Enter") -> None:
        """Type a text and then a key."""
        self._tmux("send-keys", "-l", "--", text)
        self.press(key)

    def press(self, key: str) -> None:
        """Press a key by tmux' name, such as ``C-c``."""
        self._tmux("send-keys", key)

    def wait(self, pattern: str) -> str:
        """Wait until the last command has written something, and return it."""
        found = wait_until(
            lambda: re.search(pattern, _written(self._latest(), self._number)),
            what=lambda: f"{pattern!r} on the screen:\n{self.text()}",
        )
        return found[0] if found else ""

    def wait_screen(self, pattern: str) -> None:
        """Wait until something stands on the screen, as in a line that is not entered yet."""
        wait_until(
            lambda: re.search(pattern, self._latest().rstrip("\n"), re.MULTILINE),
            what=lambda: f"{pattern!r} on the screen:\n{self.text()}",
        )

    def text(self) -> str:
        """Return all that stands on the screen and above it; wrapped lines are one."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    @property
    def title(self) -> str:
        """The title of the terminal, which programs may set."""
        return self._tmux("display-message", "-p", "#{pane_title}")

    def _latest(self) -> str:
        """Return :meth:`text`; a process to ask for it is started only when there is more."""
        size = self._output.stat().st_size if self._output.exists() else 0
        if size != self._size:
            # In this order: what is written meanwhile is found by the next look.
            self._shown, self._size = self.text(), size
        return self._shown

    def _wait_prompt(self, number: int) -> int:
        def code() -> str | None:
            found = dict(PROMPT.findall(self._latest()))
            return found.get(str(number))

        return int(
            wait_until(code, what=lambda: f"prompt {number} on the screen:\n{self.text()}") or "-1"
        )

    def _tmux(self, *args: str, check: bool = True) -> str:
        env = {name: value for name, value in os.environ.items() if name not in ("TMUX", "COLUMNS")}
        return subprocess.run(
            ["tmux", "-L", self._name, *args],
            env=env,
            capture_output=True,
            text=True,
            check=check,
        ).stdout


def _written(text: str, number: int) -> str:
    """Return all behind the line in which the shell has echoed a command."""
    return text.split(f"<{number}:")[-1].partition("\n")[2]
