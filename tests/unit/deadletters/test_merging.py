"""Several queues of dead letters are read as one, each only when its first one is next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.deadletters.reading import merged

#: By queue, the scores of its items, and by how much less is known of its first one.
QUEUES = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.lists(st.integers(0, 9)).map(sorted), st.integers(0, 3))
)


@given(QUEUES, st.integers(0, 60))
def test_items_come_in_order_and_queues_are_opened_late(
    queues: dict[str, tuple[list[int], int]], number: int
) -> None:
    opened: list[str] = []

    def of_queue(queue: str) -> Iterator[tuple[float, tuple[str, int]]]:
        opened.append(queue)
        scores, _ = queues[queue]
        return iter([(float(score), (queue, place)) for place, score in enumerate(scores)])

    firsts = {queue: float((scores or [5])[0] - less) for queue, (scores, less) in queues.items()}
    every = sorted(
        (float(score), queue, place)
        for queue, (scores, _) in queues.items()
        for place, score in enumerate(scores)
    )

    found = [*islice(merged(firsts, of_queue), number)]

    assert [(score, *item) for score, item in found] == every[:number]
    assert len(opened) == len({*opened})
    if 0 < number <= len(every):
        last, _, _ = every[number - 1]
        assert all(firsts[queue] <= last for queue in opened)
