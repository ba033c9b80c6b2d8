"""Reads replies of Redis (RESP2) from pieces of any size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

#: Number of parsed bytes from which they are dropped from the front of the buffer.
_DROP_BYTES = 65536


class ReplyReader:
    """Parses bytes into replies.

    Parameters
    ----------
    error_of : Callable[[str], Exception]
        Returns an exception for the text of an error reply. The exception is the reply.
    """

    def __init__(self, error_of: Callable[[str], Exception]) -> None:
        self._error_of = error_of
        self._buffer = bytearray()
        self._at = 0
        self._reading: Generator[None, None, Any] | None = None

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add *data*, and yield the replies that are now complete."""
        self._buffer += data
        while self._reading is not None or self._at < len(self._buffer):
            reading = self._reading = self._reading or self._reply()
            try:
                next(reading)
            except StopIteration as done:
                self._reading = None
                if self._at >= _DROP_BYTES or self._at == len(self._buffer):
                    del self._buffer[: self._at]
                    self._at = 0
                yield done.value
            else:
                return

    def _reply(self) -> Generator[None, None, Any]:
        """Return one reply. Yield while bytes are missing."""
        buffer = self._buffer
        while (end := buffer.find(b"\r\n", self._at)) < 0:
            yield
        kind, line = buffer[self._at], bytes(buffer[self._at + 1 : end])
        self._at = end + 2
        if kind == 0x24:  # $
            size = int(line)
            if size < 0:
                return None
            while len(buffer) < self._at + size + 2:
                yield
            start, self._at = self._at, self._at + size + 2
            return bytes(memoryview(buffer)[start : start + size])
        if kind == 0x3A:  # :
            return int(line)
        if kind == 0x2A:  # *
            count = int(line)
            if count < 0:
                return None
            items = []
            for _ in range(count):
                items.append((yield from self._reply()))
            return items
        if kind == 0x2B:  # +
            return line
        if kind == 0x2D:  # -
            return self._error_of(line.decode(errors="replace"))
        raise ValueError(f"{bytes([kind])!r} begins no reply of Redis")
