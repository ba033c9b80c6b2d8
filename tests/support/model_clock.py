"""Move lease time without waiting: what ``dispatch/next_queue.lua`` keeps of it is moved
instead."""

from __future__ import annotations

from typing import Any, cast

from redis import Redis

CLOCK = "delayq:clock"


def pass_time(client: Redis, seconds: float) -> None:
    """Let *seconds* of lease time pass, as if someone had looked at it all the while."""
    client.hincrby(CLOCK, "stood", -_ms(seconds))


def go_unwatched(client: Redis, seconds: float) -> None:
    """Make it as if *seconds* had passed in which nobody looked: an outage, a failover."""
    client.hincrby(CLOCK, "stood", -_ms(seconds))
    client.hincrby(CLOCK, "seen", -_ms(seconds))


def set_clock_back(client: Redis, seconds: float) -> None:
    """Make it as if Redis' clock had been set back by *seconds*."""
    go_unwatched(client, -seconds)


def lease_now(client: Redis) -> int:
    """Return lease time in ms."""
    seconds, micros = cast("tuple[int, int]", client.time())
    stood = cast("bytes | None", client.hget(CLOCK, "stood"))
    return seconds * 1000 + micros // 1000 - int(stood or 0)


def relative(state: dict[str, Any], now: int) -> dict[str, Any]:
    """Return a snapshot with ends of leases in minutes from *now*, rounded, without the clock."""
    shown = {key: value for key, value in state.items() if key != CLOCK}
    for key, value in shown.items():
        if key.endswith(":leases") or key == "delayq:lease_ends":
            shown[key] = {name: round((score - now) / 60_000) for name, score in value.items()}
    return shown


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
