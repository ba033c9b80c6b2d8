"""How many frames of this package lie between a call and the bytes on the socket."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis.connection import AbstractConnection

import celery_delayq
from celery_delayq import DelayQ
from celery_delayq.testing.fixtures import RedisUnderTest

OURS = str(Path(celery_delayq.__file__).parent)

#: Most frames of ``apply_async``, and of a call of the schedule.
SENDING, ASKING = 5, 9


@pytest.fixture
def delayq(delayq_redis: RedisUnderTest) -> Iterator[DelayQ]:
    app = Celery("frames", broker=f"delayq+redis://127.0.0.1:{delayq_redis.port}/0")

    @app.task(name="add", shared=False)
    def add() -> None:
        pass

    delayq = DelayQ(app)
    yield delayq
    delayq.close()


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Our frames at each command, once the connections are there."""
    found: list[list[str]] = []
    send = AbstractConnection.send_packed_command

    def noted(connection: Any, *args: Any, **options: Any) -> Any:
        stack = traceback.extract_stack()
        found.append([f"{f.filename}:{f.name}" for f in stack if f.filename.startswith(OURS)])
        return send(connection, *args, **options)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", noted)
    return found


@pytest.mark.parametrize("options", [{}, {"countdown": 60}], ids=["at once", "countdown"])
def test_few_frames_lie_between_apply_async_and_the_socket(
    delayq: DelayQ, frames: list[list[str]], options: dict[str, Any]
) -> None:
    add = delayq.session.app.tasks["add"]
    add.apply_async(**options)
    frames.clear()

    add.apply_async(**options)

    assert len(frames) == 1
    assert len(frames[0]) <= SENDING, frames


@pytest.mark.parametrize(
    "call",
    [
        lambda delayq, id: delayq.cancel(id),
        lambda delayq, id: delayq.get(id),
        lambda delayq, id: delayq.reschedule(id, countdown=90),
        lambda delayq, id: delayq.run_now(id),
    ],
    ids=["cancel", "get", "reschedule", "run_now"],
)
@pytest.mark.parametrize("queues", [1, 3])
def test_few_frames_lie_between_a_call_for_one_task_and_the_socket(
    delayq: DelayQ,
    frames: list[list[str]],
    call: Callable[[DelayQ, str], object],
    queues: int,
) -> None:
    add = delayq.session.app.tasks["add"]
    for number in range(queues):
        add.apply_async(countdown=60, queue=f"q{number}")
    ids = [add.apply_async(countdown=60, queue="q0").id for _ in range(2)]
    call(delayq, ids[0])
    frames.clear()

    call(delayq, ids[1])

    # Not the event of a cancelled task, which Celery sends.
    asked = [each for each in frames if f"{OURS}/store/session.py:ask" in each]
    assert len(asked) >= 2  # the registry, and what is asked of the queue
    assert max(map(len, asked)) <= ASKING, asked
