"""The loop of ``top``: reads, draws, and follows keys, until the reader quits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from celery_delayq.cli.lines import Paper
from celery_delayq.cli.top.drawing import DrawnFrame, Status, draw
from celery_delayq.cli.top.frame import Frame, Request
from celery_delayq.cli.top.state import Screen, ShownRows, State
from celery_delayq.cli.top.terminal import Terminal

#: Seconds between two drawings without news: ages are shown.
REDRAW_SECONDS = 1.0

#: Least seconds between two reads of one task: they may ask all workers.
TASK_SECONDS = 5.0


class Reading:
    """One read, in a thread: keys work while Redis does not answer.

    Parameters
    ----------
    request : Request
        What is read.
    read : Callable[[Request], Frame]
        Reads it.
    done : Callable[[], None]
        Is called in the thread when the read has ended.
    """

    def __init__(
        self, request: Request, read: Callable[[Request], Frame], done: Callable[[], None]
    ) -> None:
        self.request = request
        self.began = time.monotonic()
        self._read, self._done = read, done
        self._frame: Frame | None = None
        self._error: BaseException | None = None
        self._has_ended = threading.Event()
        # A daemon: the process may end while Redis is silent.
        threading.Thread(target=self._run, name="delayq-top", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether there is a result."""
        return self._has_ended.is_set()

    def result(self) -> Frame:
        """Return the frame. Raises what the read has raised."""
        if self._error is not None:
            raise self._error
        assert self._frame is not None
        return self._frame

    def _run(self) -> None:
        try:
            self._frame = self._read(self.request)
        except BaseException as exc:
            self._error = exc
        self._has_ended.set()
        self._done()


class Top:
    """Shows frames until the reader quits.

    Parameters
    ----------
    terminal : Terminal
        Where to show them.
    read : Callable[[Request], Frame]
        Reads a frame; one with an error if the broker cannot be reached.
    interval : float
        Seconds between two reads.
    broker : str
        The address of the broker, without its password.
    stopping : threading.Event
        Is set when the process is to end.
    """

    def __init__(
        self,
        terminal: Terminal,
        read: Callable[[Request], Frame],
        interval: float,
        broker: str,
        stopping: threading.Event,
        *,
        ascii_only: bool = False,
    ) -> None:
        self._terminal, self._read, self._interval = terminal, read, interval
        self._broker, self._stopping, self._ascii_only = broker, stopping, ascii_only
        self._state = State()
        self._frame: Frame | None = None
        self._error = ""
        self._reading: Reading | None = None
        self._next_read = 0.0
        self._is_search_under_way = False

    def run(self) -> None:
        """Run until the reader quits, or the process is to end."""
        while not (self._state.is_over or self._stopping.is_set()):
            self._read_if_needed()
            drawn = self._show()
            try:
                keys = self._terminal.keys(self._seconds_to_wait())
            except EOFError:
                return
            for key in keys:
                self._press(key, drawn.shown)
            self._take_result()

    def _press(self, key: str, shown: ShownRows) -> None:
        before = Request.of(self._state)
        self._state = self._state.after(key, shown)
        after = Request.of(self._state)
        if after != before:
            self._next_read = 0.0
            if after.place != before.place:  # the rows of another place
                self._frame, self._error = None, ""

    def _read_if_needed(self) -> None:
        """Begin a read if it is time for one, and none is running."""
        is_new = self._frame is None or self._frame.request != Request.of(self._state)
        is_new = is_new or self._is_search_under_way
        is_needed = (is_new and not self._error) or not self._state.is_stopped
        is_due = is_needed and time.monotonic() >= self._next_read
        if self._reading is None and is_due:
            if not is_new:
                self._state = self._state.searching_again()
            request = Request.of(self._state)
            self._reading = Reading(request, self._read, self._terminal.wake)

    def _take_result(self) -> None:
        reading = self._reading
        if reading is None or not reading.has_ended:
            return
        self._reading = None
        frame = reading.result()
        if reading.request != Request.of(self._state):  # keys were faster
            return
        is_task = reading.request.place.screen is Screen.TASK
        pause = max(self._interval, TASK_SECONDS) if is_task else self._interval
        self._next_read = reading.began + pause
        self._error = frame.error
        if frame.error:
            return
        tasks, before = frame.tasks, None if self._frame is None else self._frame.tasks
        goes_on = tasks is not None and tasks.is_search and not tasks.rows
        if tasks is not None and goes_on and tasks.cursor is not None:
            shown = ShownRows(cursor=tasks.cursor, looked=tasks.looked)
            self._state, self._next_read = self._state.searching_on(shown), 0.0
            self._is_search_under_way = True
            if before is None or not before.rows:  # else what was found stays until the end
                self._frame = frame
        else:
            self._frame, self._is_search_under_way = frame, False

    def _show(self) -> DrawnFrame:
        now = time.monotonic()
        silent = 0.0 if self._reading is None else now - self._reading.began
        age = 0.0 if self._frame is None else now - self._frame.read_at
        status = Status(self._broker, self._interval, self._error, silent, age)
        width, height = self._terminal.size
        paper = Paper(width, self._ascii_only)
        drawn = draw(self._state, self._frame, status, paper, height)
        self._terminal.show(drawn.lines)
        return drawn

    def _seconds_to_wait(self) -> float:
        if self._reading is not None or self._state.is_stopped:
            return REDRAW_SECONDS
        return min(REDRAW_SECONDS, max(0.0, self._next_read - time.monotonic()))
