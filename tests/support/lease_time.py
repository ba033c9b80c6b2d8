"""Move lease time without waiting."""

from __future__ import annotations

from typing import Any, cast

from redis import Redis

CLOCK = "delayq:clock"


def pass_time(client: Redis, seconds: float) -> None:
    """Let *seconds* of lease time pass, as if a dispatcher had looked all the time."""
    client.hincrby(CLOCK, "stood", -_ms(seconds))


def go_unwatched(client: Redis, seconds: float) -> None:
    """Let *seconds* pass without a dispatcher: an outage, a failover."""
    client.hincrby(CLOCK, "stood", -_ms(seconds))
    client.hincrby(CLOCK, "seen", -_ms(seconds))


def set_clock_back(client: Redis, seconds: float) -> None:
    """Set Redis' clock back by *seconds*, as the scripts see it."""
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
