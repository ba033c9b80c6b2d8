"""What the children of a prefork pool report, without a worker."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.connection import Pipe
from billiard.einfo import ExceptionInfo
from billiard.pool import ACK, READY
from billiard.queues import _SimpleQueue
from celery.exceptions import WorkerShutdown
from hypothesis import given
from hypothesis import strategies as st
from kombu.asynchronous.hub import Hub

from celery_delayq.integration.pool import results

#: As a child reports that it has begun and ended a task, the latter at length.
BEGUN = (1, (7, None, 0.5, 4711, None))
ENDED = (2, (7, None, (True, (0, "x" * 200_000, 0.1)), 5))


class Child:
    """A child with a pipe to its worker."""

    def __init__(self) -> None:
        self.outq = _SimpleQueue(rnonblock=True)
        self.fd = self.outq._reader.fileno()

    def write(self, data: bytes) -> None:
        os.write(self.outq._writer.fileno(), data)

    def close(self) -> None:
        for end in (self.outq._reader, self.outq._writer):
            if not end.closed:
                end.close()


class Worker:
    """What a pool's handler of results sees of a worker."""

    def __init__(self, child: Child) -> None:
        self.hub = Hub()
        self.received: list[Any] = []
        self.fileno_to_outq = {child.fd: child}
        self.on_state_change: Any = self.received.append
        self.on_readable = results.read_all_messages(Worker, print)(self, self.hub)
        self.hub.add_reader(child.fd, self.on_readable, child.fd)


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


@pytest.fixture
def worker(child: Child) -> Iterator[Worker]:
    worker = Worker(child)
    yield worker
    worker.hub.close()


def sent(*messages: object) -> bytes:
    """Return what a child writes."""
    bodies = [pickle.dumps(each) for each in messages]
    return b"".join(struct.pack("!i", len(body)) + body for body in bodies)


def read_half(worker: Worker, child: Child, *, rest: bool) -> None:
    """Have a worker read half a message, and the child write the rest or stop."""
    data = sent(BEGUN)
    child.write(data[:7])
    worker.on_readable(child.fd)
    if rest:
        child.write(data[7:])


@given(
    messages=st.lists(st.one_of(st.just(BEGUN), st.just(ENDED), st.just(None)), max_size=5),
    cuts=st.lists(st.integers(1, 70_000), min_size=1, max_size=8),
)
def test_messages_are_received_once_and_in_order_however_they_arrive(
    messages: list[Any], cuts: list[int]
) -> None:
    child = Child()
    worker = Worker(child)
    data = sent(*messages)
    try:
        # At most what a pipe holds. The last size is that of the rest: some hundred pieces at most.
        *sizes, last = cuts
        last = max(last, len(data) // 100 + 1)
        while data:
            size = min(sizes.pop(0) if sizes else last, results.PIPE_BYTES)
            child.write(data[:size])
            data = data[size:]
            worker.on_readable(child.fd)
        assert worker.received == messages
        assert worker.hub.readers == {child.fd: (worker.on_readable, (child.fd,))}
    finally:
        child.close()
        worker.hub.close()


def test_an_error_of_one_message_loses_none_that_was_read_with_it(
    child: Child, worker: Worker
) -> None:
    def receive(message: Any) -> None:
        worker.received.append(message)
        if message in (1, 3):
            raise LookupError(message)

    worker.on_state_change = receive
    data = sent(1, 2, 3, 4)
    child.write(data[:-1])

    with pytest.raises(LookupError, match="1"):
        worker.on_readable(child.fd)
    before = [*worker.received]
    child.write(data[-1:])
    worker.on_readable(child.fd)

    assert (before, worker.received) == ([1, 2, 3], [1, 2, 3, 4])


def test_a_signal_that_ends_the_loop_loses_none_that_was_read(child: Child, worker: Worker) -> None:
    def end(_message: Any) -> None:
        raise WorkerShutdown

    worker.on_state_change = end
    child.write(sent(1, 2, 3))
    with pytest.raises(WorkerShutdown):
        worker.on_readable(child.fd)
    worker.on_state_change = worker.received.append
    removed: list[int] = []

    flush = results.end_flush(Worker, lambda *_: None)
    flush(worker, child.fd, removed.append, worker.fileno_to_outq, worker.on_state_change)

    assert (worker.received, removed) == ([2, 3], [])


@pytest.mark.parametrize("ends", ["with the rest", "without it"])
def test_what_a_child_leaves_is_read_from_where_reading_had_stopped(
    child: Child, worker: Worker, ends: str
) -> None:
    read_half(worker, child, rest=ends == "with the rest")
    pool = SimpleNamespace(_result_handler=worker)
    flushed: list[Any] = []

    results.flush_whole_messages(Worker, lambda _pool, each: flushed.append(each))(pool, child)

    read = ([BEGUN], [child]) if ends == "with the rest" else ([], [])
    assert (worker.received, flushed) == read


@pytest.mark.parametrize("why", ["its pipe has ended", "it has ended", "its pipe is closed"])
def test_a_child_that_writes_no_more_is_not_watched(child: Child, worker: Worker, why: str) -> None:
    if why == "its pipe has ended":
        child.outq._writer.close()
    elif why == "it has ended":
        worker.fileno_to_outq.clear()
    else:
        child.outq._reader.close()

    worker.on_readable(child.fd)

    assert (worker.received, worker.hub.readers) == ([], {})


def test_a_pipe_without_anything_is_watched_on(child: Child, worker: Worker) -> None:
    worker.on_readable(child.fd)

    assert (worker.received, [*worker.hub.readers]) == ([], [child.fd])


@pytest.mark.parametrize("ends", ["with the rest", "without it"])
def test_a_worker_that_stops_reads_the_rest_of_a_message_or_the_end_of_its_pipe(
    child: Child, worker: Worker, ends: str
) -> None:
    read_half(worker, child, rest=ends == "with the rest")
    removed: list[int] = []
    flushed: list[int] = []

    flush = results.end_flush(Worker, lambda _worker, fd, *_: flushed.append(fd))
    flush(worker, child.fd, removed.append, worker.fileno_to_outq, worker.on_state_change)

    if ends == "with the rest":
        assert (worker.received, removed, flushed) == ([BEGUN], [], [child.fd])
    else:
        assert (worker.received, removed, flushed) == ([], [child.fd], [])


def test_a_worker_that_stops_does_not_wait_for_ever_for_the_rest(
    child: Child, worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The child is stopped, and another one has inherited its end of the pipe."""
    monkeypatch.setattr(results, "MESSAGE_REST_SECONDS", 0.01)
    inherited = os.dup(child.outq._writer.fileno())
    read_half(worker, child, rest=False)
    removed: list[int] = []

    flush = results.end_flush(Worker, lambda *_: pytest.fail("it reads what has no beginning"))
    flush(worker, child.fd, removed.append, worker.fileno_to_outq, worker.on_state_change)

    os.close(inherited)
    assert (removed, worker.received) == ([child.fd], [])
    assert "has not written the rest of a result in time" in caplog.text


def test_a_connection_with_the_number_of_a_closed_pipe_is_not_read_as_results() -> None:
    """A child was killed, its pipe is closed, and then the worker connects again."""
    hub = Hub()
    killed, living = (SimpleNamespace(outq=SimpleNamespace(_reader=each)) for each in Pipe(False))
    listed = {each.outq._reader.fileno(): each for each in (killed, living)}
    processes = SimpleNamespace(_fileno_to_outq=listed)
    killed.outq._reader.close()

    registered: list[Any] = []
    results.ignore_closed_pipes(processes, lambda _: registered.extend(listed.values()))(hub)

    assert registered == [living]


def test_a_child_reports_a_failure_by_an_exception_that_can_be_read(child: Child) -> None:
    class Local(Exception):
        pass

    begun: list[int] = []
    results.send_readable_failures(Child, lambda _child, pid: begun.append(pid))(child, 4711)

    try:
        raise Local("no")
    except Local:
        failed = READY, (7, None, (False, ExceptionInfo()), 5)
    began = ACK, BEGUN[1]
    for message in (began, failed):
        child.outq.put(message)

    assert (begun, child.outq.get()) == ([4711], began)
    assert "no" in str(child.outq.get()[1][2][1].exception)
