"""Numbers by task: of the largest tasks, and by samples."""

from __future__ import annotations

import json

from celery_delayq.metrics.slow_numbers import ByTask, estimate_counts, limit_counts, task_of


def message(task: object) -> bytes:
    return json.dumps({"body": "", "headers": {"task": task}}).encode()


def test_other_tasks_of_a_queue_are_one() -> None:
    counts = ByTask({("a", "x"): 5, ("a", "y"): 2, ("a", "z"): 1, ("b", "x"): 1, ("a", "other"): 1})

    assert limit_counts(counts, {("a", "x")}) == {
        ("a", "x"): 5,
        ("a", "other"): 4,
        ("b", "other"): 1,
    }


def test_each_message_of_a_sample_stands_for_some() -> None:
    samples = [
        (1.0, [message("x"), message("y")]),
        (2.5, [message("x"), message("x"), b"{}", b"\xff", b"[]", message(None)]),
    ]

    tasks = [(weight, [*map(task_of, messages)]) for weight, messages in samples]
    assert estimate_counts(tasks) == {"x": 6, "y": 1, "(unreadable)": 8, "None": 2}
