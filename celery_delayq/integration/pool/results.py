"""Messages from the children of a prefork worker are neither lost nor misread.

A child sends two messages for each task: at its begin and at its end. Celery reads the length of a
message and then the message itself. While a part is missing, Celery keeps the first part in a
generator that is registered with the event loop.
"""

from __future__ import annotations

import logging
import os
import pickle
import struct
import time
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from billiard.pool import READY
from celery.utils.serialization import get_pickleable_exception
from kombu.asynchronous.hub import Hub
from kombu.utils.encoding import safe_repr

logger = logging.getLogger(__name__)

#: Capacity of a pipe in bytes: one read gets everything that a child has written.
PIPE_BYTES = 65_536
#: Seconds that a stopping worker waits for the rest of a message, as in Celery 5.7.
MESSAGE_REST_SECONDS = 10.0

_LENGTH = struct.Struct(">i")


def read_all_messages(_owner: type, _make: Callable[..., Any]) -> Callable[..., Any]:
    """Have a pool read everything that a child has written at once.

    The first part of an incomplete message is stored with its child, because the event loop is
    created again after a lost connection. An error in one message does not delay the messages
    that were read with it.
    """

    def make_process_result(handler: Any, hub: Hub) -> Callable[[int], None]:
        children, remove_reader = handler.fileno_to_outq, hub.remove_reader

        def on_readable(fd: int) -> None:
            child = children.get(fd)
            if child is None or not _read(child, fd, handler.on_state_change):
                remove_reader(fd)

        return on_readable

    return make_process_result


def _read(child: Any, fd: int, receive: Callable[[Any], object]) -> bool:
    """Read the bytes that a child has written, and hand on complete messages.

    Returns
    -------
    bool
        Whether the child can write more.
    """
    try:
        data = os.read(fd, PIPE_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if not data:
        return False
    _take(child, data, receive)
    return True


def _take(child: Any, data: bytes, receive: Callable[[Any], object]) -> None:
    """Hand on complete messages, and store the beginning of the next message."""
    begun = vars(child).get("delayq_begun")
    if begun is not None:
        begun += data
        if len(begun) < _end(begun):
            return  # so that a long message is joined only once
        data = bytes(begun)
        del child.delayq_begun
    at = 0
    error = None
    try:
        while len(data) - at >= (size := _end(data, at)):
            start, at = at + _LENGTH.size, at + size
            try:
                receive(pickle.loads(data[start:at]))
            except Exception as exc:
                error = error or exc
    finally:  # also if a signal ends the worker's loop
        if at < len(data):
            child.delayq_begun = bytearray(data[at:])
    if error is not None:
        raise error


def _end(data: bytes | bytearray, at: int = 0) -> int:
    """Return the size in bytes, with the length field, of the message that begins at *at*.

    If the length field is incomplete, return the size of that field.
    """
    if len(data) - at < _LENGTH.size:
        return _LENGTH.size
    length: int = _LENGTH.unpack_from(data, at)[0]
    return _LENGTH.size + length


def end_flush(_owner: type, flush: Callable[..., Any]) -> Callable[..., Any]:
    """Have a stopping worker read an incomplete result without waiting for ever.

    A process that is killed while it sends a result leaves a part of the result in its pipe. Celery
    waits for the rest in ``ResultHandler._flush_outqueue``, while the worker itself keeps the
    writing end of the pipe open. When the writing end is closed, Celery reads the end of the file
    and continues.
    """

    def flush_that_ends(handler: Any, fd: int, remove: Any, processes: Any, *args: Any) -> Any:
        child = processes.get(fd)
        if child is not None:
            if not child.outq._writer.closed:
                child.outq._writer.close()
            if "delayq_begun" in vars(child) and not _read_rest(child, fd, *args):
                return remove(fd)
        return flush(handler, fd, remove, processes, *args)

    return flush_that_ends


def flush_whole_messages(_owner: type, flush: Callable[..., Any]) -> Callable[..., None]:
    """When a child has ended, have a pool first read the rest of a message.

    Celery would read this rest as a new message of arbitrary length.
    """

    def flush_whole(pool: Any, child: Any) -> None:
        reader, receive = child.outq._reader, pool._result_handler.on_state_change
        _take(child, b"", receive)
        while "delayq_begun" in vars(child) and not reader.closed and reader.poll(0):
            if not _read(child, reader.fileno(), receive):
                break
        if "delayq_begun" not in vars(child):  # else the pipe has no complete message left
            flush(pool, child)

    return flush_whole


def _read_rest(child: Any, fd: int, receive: Callable[[Any], object]) -> bool:
    """Read the rest of a message; return whether the message is complete."""
    deadline = time.monotonic() + MESSAGE_REST_SECONDS
    _take(child, b"", receive)
    while "delayq_begun" in vars(child):
        if not child.outq._reader.poll(max(0, deadline - time.monotonic())):
            logger.warning("%r has not written the rest of a result in time", child)
            return False
        if not _read(child, fd, receive):
            return False
    return True


def ignore_closed_pipes(processes: Any, register: Callable[[Hub], None]) -> Callable[[Hub], None]:
    """Have a worker that reconnects ignore closed pipes of its children.

    Celery closes the pipe of a killed child (``AsynPool.on_partial_read``) but keeps its descriptor
    in a list. The number may meanwhile belong to a connection: reading from it never ends.
    """

    def register_open(loop: Hub) -> None:
        for fd, child in [*processes._fileno_to_outq.items()]:
            if child.outq._reader.closed:
                del processes._fileno_to_outq[fd]
        register(loop)

    return register_open


def send_readable_failures(_owner: type, begin: Callable[..., None]) -> Callable[..., None]:
    """Have a child report a failure by an exception that the worker can read."""

    def on_loop_start(child: Any, pid: int) -> None:
        begin(child, pid)
        queue = child.outq
        put = queue.put

        def put_readable(message: Any) -> None:
            kind, args = message
            if kind == READY:
                _make_readable(args[2][1])
            put(message)

        queue.put = put_readable

    return on_loop_start


def _make_readable(value: Any) -> None:
    """Replace an exception that cannot be pickled and unpickled, which would end the worker."""
    info = value[1] if type(value) is tuple else value
    if not isinstance(info, ExceptionInfo):
        return
    exc = info.exception
    try:
        pickle.loads(pickle.dumps((info.type, exc)))
    except Exception:
        raised = getattr(exc, "exc", exc)
        if isinstance(raised, Exception):
            info.exception = get_pickleable_exception(raised)
        else:
            info.exception = WorkerLostError(f"The task has raised {safe_repr(raised)}")
        info.type = type(info.exception)
