"""Which masters of a Redis Cluster are away, and which hash tags they have."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from celery_delayq.errors import BrokerUnavailable, CommandRefused
from celery_delayq.store.cluster.stores import address_of
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.store.schedule import Store
from celery_delayq.store.stores import Stores
from celery_delayq.utils.deadline import NotInTime, begin

#: Seconds to wait for all masters together.
OUTAGE_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MasterAway:
    """A master of a Redis Cluster that cannot be asked.

    Attributes
    ----------
    address : str
        Host and port, as the cluster announces them; "" where no node knows a master.
    tags : Sequence[str]
        Its hash tags.
    why : str
        Why it cannot be asked.
    """

    address: str
    tags: Sequence[str]
    why: str

    def __str__(self) -> str:
        at = f" at {self.address}" if self.address else ""
        return f"the master{at} is away, which has {', '.join(self.tags)}: {self.why}"


def masters_away(stores: Stores, timeout: float = OUTAGE_TIMEOUT_SECONDS) -> list[MasterAway]:
    """Ask the masters of all hash tags at once, and return those without an answer.

    Of a single Redis there are none.
    """
    if stores.has_one:
        return []
    addresses: dict[str, str] = {}
    calls = {
        tag: begin(partial(_ask, store, partial(addresses.__setitem__, tag)))
        for tag, store in stores.by_tag()
    }
    end = time.monotonic() + timeout
    found: dict[tuple[str, str], list[str]] = {}
    for tag, call in calls.items():
        try:
            call.result(max(0.0, end - time.monotonic()))
        except NotInTime:
            why = f"no answer in {timeout:g} s"
        except (*BROKER_ERRORS, OSError) as exc:
            why = describe_error(exc)
        else:
            continue
        # Tags of one master may have different reasons, such as a new connection and an old one.
        address = addresses.get(tag, "")
        found.setdefault((address, "" if address else why), [why]).append(tag)
    return [MasterAway(address, tags, why) for (address, _), (why, *tags) in found.items()]


def answering(stores: Stores) -> tuple[Stores, list[MasterAway]]:
    """Return the stores whose masters answer, and the masters that do not.

    Raises
    ------
    BrokerUnavailable
        None answers.
    """
    away = masters_away(stores)
    there = stores.without([tag for each in away for tag in each.tags])
    if not [*there]:
        raise BrokerUnavailable("; ".join(map(str, away)))
    return there, away


def _ask(store: Store, tell_address: Callable[[str], object]) -> None:
    """Raise an error unless the master answers; it must serve the slot."""
    tell_address(address_of(store))
    with suppress(CommandRefused):  # an account that may not look has an answer too
        store.client.exists(store.keys.interrupt("probe"))
