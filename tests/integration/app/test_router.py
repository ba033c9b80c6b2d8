"""The router of docs/scaling.md splits a busy queue."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from celery import Celery

from celery_delayq import DelayQ

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


def test_tasks_of_one_key_share_one_of_eight_queues(app: Celery, delayq: DelayQ) -> None:
    text = PAGE.read_text("utf-8")
    [code] = [
        each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "crc32" in each
    ]
    [words] = re.findall(r"`-Q (\S+)`", text)
    exec(code, {"app": app})

    for number in range(80):
        app.send_task("shop.tasks.mail", (f"user-{number % 40}",), countdown=60)
    app.send_task("tasks.add", (1, 2), countdown=60)

    queues = defaultdict(set)
    for entry in delayq.entries():
        queues[str(entry.args)].add(entry.queue)
    assert queues.pop("[1, 2]") == {"celery"}
    assert len(queues) == 40
    assert all(len(found) == 1 for found in queues.values())
    assert set().union(*queues.values()) == {*words.split(",")}
