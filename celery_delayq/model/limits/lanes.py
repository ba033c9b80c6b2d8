"""Lanes: their members in sorted sets, as ``include/tracking.lua`` has them, and the next start of
their tasks. No I/O.
"""

from __future__ import annotations

import math

from celery_delayq.model.limits import Definition
from celery_delayq.model.script_values import to_bytes


def range_of_lane(lane: str) -> tuple[bytes, bytes]:
    """Return the lexicographic range of the members of a lane."""
    return to_bytes(f"[{lane}\0"), to_bytes(f"({lane}\1")


def range_of_limit(name: str) -> tuple[bytes, bytes]:
    """Return the lexicographic range of the members of all lanes of a limit."""
    return to_bytes(f"[{name}:"), to_bytes(f"({name};")


def held_member(lane: str, step: int, due_ms: int, name: str) -> bytes:
    """Return the member of a held entry: entries of a lane are sorted by priority step and due."""
    return to_bytes(f"{lane}\0{step:03d}\0{due_ms:015d}\0{name}")


def next_start_us(
    definition: Definition | None, used: int, used_until_us: float, next_try_us: float, now_us: int
) -> float:
    """Return when the next task of a lane may start (µs since 1970): *now_us* if a worker may take
    it now, infinity while all permits are taken.

    Parameters
    ----------
    definition : Definition | None
        What counts; None if nothing is limited.
    used : int
        Leased messages of the lane.
    used_until_us : float
        The time up to which the slots of its rate are used; 0 for none.
    next_try_us : float
        The time of its next try. It tells nothing of permits: it may be in the past while all are
        taken, since a busy worker tries no lane, and infinity after one came back.
    """
    next_us = now_us if definition is None else definition.next_us(used, used_until_us, now_us)
    return next_us if math.isinf(next_try_us) else max(next_us, next_try_us)
