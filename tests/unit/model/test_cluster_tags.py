"""Hash tags of a cluster: spread evenly, and the same for a queue in each process."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_delayq.model.cluster_tags import SLOTS, cluster_tags, slot_of, tag_of


def test_the_slot_is_that_of_redis() -> None:
    assert slot_of("123456789") == 0x31C3


@pytest.mark.parametrize("masters", [2, 3, 4, 6, 12])
def test_masters_with_equal_numbers_of_slots_have_equal_numbers_of_tags(masters: int) -> None:
    at = Counter(slot_of(tag) * masters // SLOTS for tag in cluster_tags(12))

    assert at == dict.fromkeys(range(masters), 12 // masters)


def test_tags_and_those_of_queues_stay() -> None:
    tags = cluster_tags(12)

    assert (tags[0], tags[7], tags[11]) == ("dq00-0", "dq07-12", "dq11-31")
    assert [tag_of(queue, tags)[:4] for queue in ("celery", "mail")] == ["dq06", "dq00"]


def test_queues_are_spread_over_all_tags() -> None:
    tags = cluster_tags(12)
    found = Counter(tag_of(f"queue-{number}", tags) for number in range(1200))

    assert found.keys() == {*tags}
    assert max(found.values()) < 150
