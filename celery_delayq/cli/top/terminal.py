"""The terminal of ``top``: its keys, its screen, and signals."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console, Group
from rich.text import Text

#: Seconds after an Escape in which the rest of a key's sequence must follow.
SEQUENCE_SECONDS = 0.05

#: Most bytes that are read at once.
_READ_BYTES = 4096

#: The sequences that a terminal sends for keys: ESC, [ or O, numbers, and the end.
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*([A-Za-z~])")
_PREFIX = re.compile(r"\x1b([\[O][0-9;]*)?")

_KEYS = {
    **{"A": "up", "B": "down", "H": "home", "F": "end"},
    **{"1~": "home", "4~": "end", "5~": "page up", "6~": "page down", "7~": "home", "8~": "end"},
}
_CONTROLS = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape"}


class KeyDecoder:
    """Makes keys of the bytes that a terminal sends. No I/O."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    @property
    def is_inside(self) -> bool:
        """Whether a sequence has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that are complete: a character, or a name such as ``page up``."""
        self._rest += self._decode(data)
        return [*self._keys()]

    def end(self) -> list[str]:
        """Return the key Escape if nothing has followed it; drop other beginnings."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []

    def _keys(self) -> Iterator[str]:
        while self._rest:
            if match := _SEQUENCE.match(self._rest):
                self._rest = self._rest[match.end() :]
                text = match[0][2:]
                key = _KEYS.get(text) or _KEYS.get(match[1])
                if key:
                    yield key
                continue
            if _PREFIX.fullmatch(self._rest):
                return
            one, self._rest = self._rest[0], self._rest[1:]
            if one in _CONTROLS:
                yield _CONTROLS[one]
            elif one.isprintable():
                yield one


class Terminal:
    """Shows lines on a screen of its own, and reads keys; the terminal is as before afterwards.

    Parameters
    ----------
    console : Console
        A console whose output is a terminal that can move its cursor. Standard input is one too.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._input = sys.stdin.fileno()
        self._decoder = KeyDecoder()
        self._handlers: dict[int, Any] = {}
        self._attributes: list[Any] = []
        self._reading, self._waking = os.pipe()
        for each in (self._reading, self._waking):
            os.set_blocking(each, False)
        self._is_closed = False

    def __enter__(self) -> Terminal:
        self._take()
        # A signal ends the wait for keys: the size has changed, or the process is to end.
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        handlers = {signal.SIGWINCH: lambda *_: None, signal.SIGTSTP: self._suspend}
        for number, handler in handlers.items():
            self._handlers[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self._is_closed = True
        with suppress(OSError, termios.error):  # the terminal may be gone
            self._give_back()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return self._console.size.width, self._console.size.height

    def wake(self) -> None:
        """End the wait for keys. Any thread may call this."""
        if not self._is_closed:
            with suppress(BlockingIOError):  # full of earlier wake-ups
                os.write(self._waking, b"\0")

    def keys(self, seconds: float) -> list[str]:
        """Wait for keys, a wake-up, or for some seconds; return the keys.

        Raises
        ------
        EOFError
            The terminal is gone.
        """
        ready, _, _ = select.select([self._input, self._reading], [], [], max(0.0, seconds))
        if self._reading in ready:
            os.read(self._reading, _READ_BYTES)
        if self._input not in ready:
            return []
        found = self._read()
        while self._decoder.is_inside:
            ready, _, _ = select.select([self._input], [], [], SEQUENCE_SECONDS)
            if not ready:
                return [*found, *self._decoder.end()]
            found += self._read()
        return found

    def show(self, lines: Sequence[Text]) -> None:
        """Fill the screen with lines; those that do not fit are left out."""
        self._console.update_screen(Group(*lines[: self._console.size.height]))

    def _read(self) -> list[str]:
        try:
            data = os.read(self._input, _READ_BYTES)
        except OSError as exc:
            raise EOFError("the terminal is gone") from exc
        if not data:
            raise EOFError("the terminal is gone")
        return self._decoder.feed(data)

    def _take(self) -> None:
        self._attributes = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def _give_back(self) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._attributes)

    def _suspend(self, *_: object) -> None:
        """Give the terminal to the shell, stop, and take it again when the shell goes on."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
