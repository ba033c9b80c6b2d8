"""The members of lanes in sorted sets, as ``include/tracking.lua`` has them. No I/O."""

from __future__ import annotations

from celery_delayq.model.lookup import to_bytes


def range_of_lane(lane: str) -> tuple[bytes, bytes]:
    """Return the lexicographic range of the members of a lane."""
    return to_bytes(f"[{lane}\0"), to_bytes(f"({lane}\1")


def range_of_limit(name: str) -> tuple[bytes, bytes]:
    """Return the lexicographic range of the members of all lanes of a limit."""
    return to_bytes(f"[{name}:"), to_bytes(f"({name};")


def held_member(lane: str, step: int, due_ms: int, name: str) -> bytes:
    """Return the member of a held entry: entries of a lane are sorted by priority step and due."""
    return to_bytes(f"{lane}\0{step:03d}\0{due_ms:015d}\0{name}")
