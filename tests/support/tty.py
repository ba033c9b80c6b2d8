"""Run a program in a terminal, press keys, read its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from celery_delayq.testing import wait_until

#: What a program may send: moves, styles, modes, and characters.
_TOKEN = re.compile(r"\x1b\[(?P<numbers>[?0-9;]*)(?P<end>[A-Za-z])|(?P<one>[^\x1b])", re.DOTALL)


class Screen:
    """The characters on a screen. Understands what rich sends, and refuses all else."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._lines = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = ""
        #: All parameters of styles so far, and whether the program has a screen of its own.
        self.styles: set[str] = set()
        self.is_own = False

    @property
    def text(self) -> str:
        """The lines, without spaces at their ends."""
        return "\n".join("".join(line).rstrip() for line in self._lines)

    def feed(self, text: str) -> None:
        """Show what a program has sent."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                if len(text) - at > 40:
                    raise AssertionError(f"the program has sent {text[at : at + 40]!r}")
                self._rest = text[at:]
                return
            at = match.end()
            if match["one"] is None:
                self._control(match["numbers"], match["end"])
            else:
                self._write(match["one"])

    def _control(self, numbers: str, end: str) -> None:
        if end == "m":
            self.styles |= {*numbers.split(";")}
        elif end == "H":
            row, _, column = numbers.partition(";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif (numbers, end) in {("?1049", "h"), ("?1049", "l")}:
            self.is_own = end == "h"
        elif numbers != "?25":
            raise AssertionError(f"the program has sent ESC [ {numbers} {end}")

    def _write(self, one: str) -> None:
        if one in "\r\n":
            self._column = 0
            if one == "\n" and self._row == self.rows - 1:
                self._lines = [*self._lines[1:], [" "] * self.columns]
            elif one == "\n":
                self._row += 1
            return
        if not one.isprintable():
            raise AssertionError(f"the program has sent {one!r}")
        wide = cell_len(one)
        if self._column + wide > self.columns:
            self._write("\n")
        line = self._lines[self._row]
        line[self._column : self._column + wide] = [one, *[""] * (wide - 1)]
        self._column += wide


class InTerminal:
    """A program in a terminal; a context manager that ends it."""

    def __init__(
        self, command: Sequence[str], columns: int, rows: int, cwd: Path, env: Mapping[str, str]
    ) -> None:
        self.screen = Screen(columns, rows)
        self._fd, its = pty.openpty()
        self.resize(columns, rows, notify=False)
        self._before = termios.tcgetattr(self._fd)

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        known = {name: value for name, value in os.environ.items() if name not in _SIZES}
        self._process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, cwd=cwd, start_new_session=True,
            env={**known, "TERM": "xterm-256color", **env}, preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(its)
        os.set_blocking(self._fd, False)

    def __enter__(self) -> InTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._fd)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._fd, keys.encode())

    def resize(self, columns: int, rows: int, *, notify: bool = True) -> None:
        """Change the size of the terminal."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if notify:
            self.screen = Screen(columns, rows)
            os.kill(self.pid, signal.SIGWINCH)

    def text(self) -> str:
        """Return the text on the screen now."""
        # Without a program the terminal answers with an error.
        with contextlib.suppress(OSError):
            while select.select([self._fd], [], [], 0)[0]:
                data = os.read(self._fd, 65_536)
                if not data:
                    break
                self.screen.feed(data.decode("utf-8", "replace"))
        return self.screen.text

    def wait(self, pattern: str, *, gone: str = "") -> str:
        """Wait until *pattern* is on the screen, and *gone* is not; return the screen."""

        def is_there() -> bool:
            text = self.text()
            return bool(re.search(pattern, text)) and not (gone and re.search(gone, text))

        wait_until(is_there, what=lambda: f"{pattern!r} on the screen:\n{self.screen.text}")
        return self.screen.text

    def end(self) -> int:
        """Wait until the program has ended; return its exit code."""

        def code() -> list[int]:
            self.text()  # a full terminal would stop the program
            found = self._process.poll()
            return [] if found is None else [found]

        return int(wait_until(code, what=lambda: f"its end; the screen:\n{self.screen.text}")[0])

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal has the settings that it had before the program."""
        now: list[Any] = termios.tcgetattr(self._fd)
        return now == self._before and not self.screen.is_own


#: Variables that have the size of a terminal.
_SIZES = ("COLUMNS", "LINES")
