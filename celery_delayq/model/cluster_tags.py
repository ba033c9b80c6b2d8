"""Hash tags of a Redis Cluster: which ones there are, and to which one a queue belongs.

Redis judges by slot whether keys may stand in one script call, so that a queue and all that its
scripts touch beside it, such as the next-due index, carry the same tag.
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
    """Return *number* tags whose slots are spread evenly."""
    return tuple(_tag(place, SLOTS / number) for place in range(number))


def _tag(place: int, share: float) -> str:
    """Return the first name of its kind whose slot is near the middle of a share of the slots.

    Not anywhere in the share: where masters have unequal numbers of slots, a tag at an edge may
    be on the next one.
    """
    low, high = (place + 0.25) * share, (place + 0.75) * share
    names = (f"dq{place:02}-{attempt}" for attempt in count())
    return next(name for name in names if low <= slot_of(name) < high)


def tag_of(queue: str, tags: Sequence[str]) -> str:
    """Return the tag to which a queue belongs, by its name alone."""
    return tags[crc32(queue.encode()) % len(tags)]
