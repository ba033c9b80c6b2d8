"""The frames of Redis' protocol: ends and arguments."""

from __future__ import annotations

from collections.abc import Iterator

_LINES = b"+-:_,#("
_BULKS = b"$=!"
_LISTS = b"*~>"
_MAPS = b"%|"
_CRLF = b"\r\n"


class NotResp(ValueError):
    """The bytes are no frame."""


def frame_end(data: bytes | bytearray, start: int = 0) -> int:
    """Return the end of the frame that begins at *start*, -1 if the frame is incomplete.

    Raises
    ------
    NotResp
        There is no frame at *start*.
    """
    line_end = data.find(_CRLF, start)
    if line_end < 0:
        return -1
    kind = data[start]
    after = line_end + 2
    if kind in _LINES:
        return after
    if kind not in _BULKS and kind not in _LISTS and kind not in _MAPS:
        raise NotResp(f"{bytes(data[start : start + 20])!r}")
    count = int(data[start + 1 : line_end])
    if count < 0:
        return after
    if kind in _BULKS:
        end = after + count + 2
        return end if end <= len(data) else -1
    if kind in _MAPS:
        # The value of an attribute follows it directly.
        count = 2 * count + (kind == ord("|"))
    for _ in range(count):
        if after >= len(data):
            return -1
        after = frame_end(data, after)
        if after < 0:
            return -1
    return after


def arguments(request: bytes) -> Iterator[bytes]:
    """Yield name and arguments of a request, which is a list of bulk strings."""
    at = request.index(_CRLF) + 2
    while at < len(request):
        line_end = request.index(_CRLF, at)
        length = int(request[at + 1 : line_end])
        yield request[line_end + 2 : line_end + 2 + length]
        at = line_end + 2 + length + 2


class Frames:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add *data*, and yield the frames that are complete."""
        self._data += data
        start = 0
        try:
            while start < len(self._data) and (end := frame_end(self._data, start)) > 0:
                yield bytes(self._data[start:end])
                start = end
        finally:
            del self._data[:start]
