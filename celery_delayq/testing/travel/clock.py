"""The clocks of Python and of one private Redis, which a test moves together."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from redis import Redis

from celery_delayq.errors import TravelError
from celery_delayq.model.envelope import EPOCH
from celery_delayq.store.scripting.clock import TEST_CLOCK, use_test_clock

_SECOND_US = 1_000_000
_QUARTER_OF_A_NS = 0.25e-9
_MOVED_TEXT = (
    "the clock of this process is moved by {}: end its block, or leave it out. delayq_time moves "
    "the clocks of Python and of Redis together"
)


def moment_of_us(time_us: int) -> dt.datetime:
    """Return µs since 1970 as a time in UTC."""
    return EPOCH + dt.timedelta(microseconds=time_us)


class MovedClock:
    """Both clocks. They stand still, and show the same time, until the test moves them.

    Parameters
    ----------
    client : Redis
        A client of the private server.

    Raises
    ------
    TravelError
        Other code has moved Python's clock already, or time-machine is missing.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._travel: Any = None
        self._traveller: Any = None
        #: The time that both clocks show, in µs since 1970.
        self.now_us = 0

    def start(self) -> None:
        """Stop both clocks at the next whole second."""
        try:
            import time_machine
        except ImportError as exc:
            raise TravelError(
                'delayq_time needs time-machine: pip install "celery-delayq[testing]"'
            ) from exc
        if dt.datetime.__name__ == "FakeDatetime":
            raise TravelError(_MOVED_TEXT.format("freezegun"))
        if time_machine.escape_hatch.is_travelling():
            raise TravelError(_MOVED_TEXT.format("time-machine"))
        seconds = int(time.time()) + 1
        # A whole number: a datetime in UTC would change the time zone of the process too.
        self._travel = time_machine.travel(seconds, tick=False)
        self._traveller = self._travel.start()
        self.now_us = seconds * _SECOND_US
        self.write()  # first: scripts of other threads may run at once
        use_test_clock(on=True)

    def stop(self) -> None:
        """Let both clocks go again, with the right time."""
        if self._travel is not None:
            use_test_clock(on=False)
            self._travel.stop()
            self._travel = None

    def move_to(self, time_us: int) -> None:
        """Move both clocks forward to a time in µs since 1970."""
        seconds, rest_us = divmod(time_us - self.now_us, _SECOND_US)
        self._traveller.shift(seconds)
        # Some versions of time-machine cut off what a float lacks to a nanosecond.
        self._traveller.shift(rest_us / _SECOND_US + _QUARTER_OF_A_NS)
        self.now_us = time_us
        self.write()

    @property
    def now(self) -> dt.datetime:
        """The time that both clocks show, in UTC."""
        return moment_of_us(self.now_us)

    def write(self) -> bool:
        """Write the time to Redis; return whether Redis had one."""
        with self._client.pipeline() as pipe:
            pipe.delete(TEST_CLOCK)
            pipe.rpush(TEST_CLOCK, *divmod(self.now_us, _SECOND_US))
            return bool(pipe.execute()[0])

    def check(self) -> None:
        """Raise TravelError if other code has moved Python's clock meanwhile."""
        if time.time_ns() // 1000 != self.now_us or dt.datetime.__name__ == "FakeDatetime":
            raise TravelError(_MOVED_TEXT.format("freezegun or time-machine"))
