"""Whether a reminder is still wanted, for apps whose broker cannot change a waiting task.

RabbitMQ keeps a task until its due in any case. So the app decides: a due task asks here before it
does anything.
"""

from __future__ import annotations

from typing import Final

from redis import Redis

from example_project.settings import ledger_url

_KEY: Final = "example_project:wanted"
_CANCELLED: Final = "cancelled"
_STARTED: Final = "started "

#: Worker and news sometimes come at the same moment: one of both is first.
_COMPARE_AND_SET: Final = """
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""


class Wanted:
    """The wanted time of each changed reminder, and the started reminders."""

    def __init__(self) -> None:
        self._redis = Redis.from_url(ledger_url(), decode_responses=True)

    def begin(self, task_id: str, eta_ms: int | None) -> bool:
        """Note that the reminder for `eta_ms` starts; `False` if it is not wanted, or not then."""
        started = f"{_STARTED}{eta_ms}"
        while (state := self._state(task_id)) in ("", str(eta_ms)):
            if self._change(task_id, state, started):
                return True
        return state == started  # it came again, since its worker was killed

    def cancel(self, task_id: str) -> bool:
        """Prevent a run of the reminder; `False` if it has started."""
        return self._change_unless_started(task_id, _CANCELLED)

    def move(self, task_id: str, eta_ms: int) -> bool:
        """Let only the reminder for `eta_ms` run; `False` if it has started."""
        return self._change_unless_started(task_id, str(eta_ms))

    def has_started(self, task_id: str) -> bool:
        """Return whether the reminder has started."""
        return self._state(task_id).startswith(_STARTED)

    def _change_unless_started(self, task_id: str, after: str) -> bool:
        while not (state := self._state(task_id)).startswith(_STARTED):
            if self._change(task_id, state, after):
                return True
        return False

    def _state(self, task_id: str) -> str:
        return self._redis.hget(_KEY, task_id) or ""

    def _change(self, task_id: str, before: str, after: str) -> bool:
        return bool(self._redis.eval(_COMPARE_AND_SET, 1, _KEY, task_id, before, after))
