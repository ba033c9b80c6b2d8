"""Hash tags of a Redis Cluster: their names, and the tag of each queue.

A script call may only use keys of one slot. So a queue and the other keys that its scripts use,
such as the next-due index, carry the same tag.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from functools import cache
from itertools import count
from zlib import crc32

#: Slots of a Redis Cluster.
SLOTS = 16384


def slot_of(text: str) -> int:
    """Return the slot of a hash tag, or of a key without one."""
    return crc_hqx(text.encode(), 0) % SLOTS


@cache
def cluster_tags(number: int) -> tuple[str, ...]:
    """Return *number* tags whose slots are spread evenly over all slots."""
    return tuple(_tag(place, SLOTS / number) for place in range(number))


def _tag(place: int, share: float) -> str:
    """Return the first name ``dq<place>-<attempt>`` whose slot is near the middle of its share.

    A slot at the edge of the share may belong to the next master, where masters have unequal
    numbers of slots.
    """
    low, high = (place + 0.25) * share, (place + 0.75) * share
    names = (f"dq{place:02}-{attempt}" for attempt in count())
    return next(name for name in names if low <= slot_of(name) < high)


def tag_of(queue: str, tags: Sequence[str]) -> str:
    """Return the tag of a queue. The tag depends only on the queue's name and *tags*."""
    return tags[crc32(queue.encode()) % len(tags)]
