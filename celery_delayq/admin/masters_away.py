"""Finds the masters of a Redis Cluster that do not answer, and their hash tags."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from celery_delayq.errors import BrokerUnavailable, CommandRefused
from celery_delayq.store.cluster.stores import address_of
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.utils.deadline import NotInTime, begin

#: Time to wait for all masters together, in seconds.
OUTAGE_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MasterAway:
    """A master of a Redis Cluster that does not answer.

    Attributes
    ----------
    address : str
        Host and port as announced by the cluster; "" if no node knows the master.
    tags : Sequence[str]
        The hash tags of the master.
    why : str
        The error of the request to the master.
    """

    address: str
    tags: Sequence[str]
    why: str

    def __str__(self) -> str:
        at = f" at {self.address}" if self.address else ""
        return f"the master{at} is away, which has {', '.join(self.tags)}: {self.why}"


def masters_away(stores: Stores) -> list[MasterAway]:
    """Ask the masters of all hash tags in parallel; return the masters that do not answer.

    For a single Redis, the list is empty.
    """
    if stores.has_one:
        return []
    addresses: dict[str, str] = {}
    calls = {
        tag: begin(partial(_ask, store, partial(addresses.__setitem__, tag)))
        for tag, store in stores.by_tag()
    }
    end = time.monotonic() + OUTAGE_TIMEOUT_SECONDS
    found: dict[tuple[str, str], list[str]] = {}
    for tag, call in calls.items():
        try:
            call.result(max(0.0, end - time.monotonic()))
        except NotInTime:
            why = f"no answer in {OUTAGE_TIMEOUT_SECONDS:g} s"
        except (*BROKER_ERRORS, OSError) as exc:
            why = describe_error(exc)
        else:
            continue
        # Tags of one master may have different errors, for example on a new and on an old
        # connection.
        address = addresses.get(tag, "")
        found.setdefault((address, "" if address else why), [why]).append(tag)
    return [MasterAway(address, tags, why) for (address, _), (why, *tags) in found.items()]


def answering(stores: Stores) -> tuple[Stores, list[MasterAway]]:
    """Return the stores whose masters answer, and the masters that do not.

    Raises
    ------
    BrokerUnavailable
        No master answers.
    """
    away = masters_away(stores)
    answering_stores = stores.without([tag for each in away for tag in each.tags])
    if not [*answering_stores]:
        raise BrokerUnavailable("; ".join(map(str, away)))
    return answering_stores, away


def _ask(store: Store, note_address: Callable[[str], object]) -> None:
    """Raise an error unless the master answers and serves the slot."""
    note_address(address_of(store))
    with suppress(CommandRefused):  # a refusal is an answer too
        store.client.exists(store.keys.interrupt("probe"))
