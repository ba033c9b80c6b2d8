"""Wakes a thread that polls descriptors."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from typing import ClassVar


class Wakeup:
    """Makes a poll return. Any thread may set the wakeup; it stays set until it is cleared."""

    #: The wakeup that signals set.
    _for_signals: ClassVar[Wakeup | None] = None

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        self._is_set = False

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._read_end.fileno()

    def set(self) -> None:
        """Set the wakeup: the current or next poll returns."""
        if not self._is_set:
            self._is_set = True
            with suppress(OSError):
                self._write_end.send(b"!")

    def set_on_signals(self) -> None:
        """Let each signal set this wakeup, unless other code uses ``set_wakeup_fd``.

        Without a wakeup Python runs the signal's handler and continues to poll (PEP 475), so that a
        worker stops only when the poll ends. The same happens if other code takes over
        ``set_wakeup_fd`` later, such as an asyncio loop in a task of a solo worker.
        """
        former = Wakeup._for_signals
        if _wake_by(self._write_end.fileno(), instead_of=former):
            Wakeup._for_signals = self
            if former is not None and former is not self:
                former.close()

    def clear(self) -> None:
        """Clear the wakeup, so that polls wait again. Look for messages only after this call."""
        with suppress(OSError):
            self._read_end.recv(64)
        self._is_set = False

    def close(self) -> None:
        """Close both ends.

        Outside the main thread, a wakeup that signals set stays open: the wakeup that replaces it
        closes it.
        """
        if Wakeup._for_signals is self:
            if threading.current_thread() is not threading.main_thread():
                return
            _wake_by(-1, instead_of=self)
            Wakeup._for_signals = None
        self._read_end.close()
        self._write_end.close()


def _wake_by(fd: int, *, instead_of: Wakeup | None) -> bool:
    """Let signals write to *fd*; -1: to none. Return False if other code uses ``set_wakeup_fd``."""
    try:
        former = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except ValueError:
        return False  # this is not the main thread
    if former == -1 or (instead_of is not None and former == instead_of._write_end.fileno()):
        return True
    signal.set_wakeup_fd(former, warn_on_full_buffer=False)
    return False


def _forget_signals() -> None:
    """Stop setting the parent's wakeup in a forked child."""
    if Wakeup._for_signals is not None:
        _wake_by(-1, instead_of=Wakeup._for_signals)
        Wakeup._for_signals = None


os.register_at_fork(after_in_child=_forget_signals)
