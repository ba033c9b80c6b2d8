"""Public API of limits: ``delayq.limits``."""

from __future__ import annotations

import builtins
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from math import isfinite
from typing import Any
from urllib.parse import unquote

from celery_delayq.errors import InvalidLimit
from celery_delayq.limits.changes import (
    Definitions,
    LimitChanges,
    definitions_in,
    definitions_of,
)
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.limits import Definition
from celery_delayq.model.limits.lanes import next_start_us
from celery_delayq.model.scheduled import ScheduledTask, moment
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.store.task_limits import PAGE_LANES, StoredLimit
from celery_delayq.utils.delegation import methods_name_arguments
from celery_delayq.utils.numbers import is_integer
from celery_delayq.utils.portions import batches
from celery_delayq.utils.text import percent

_KEEP: Any = object()


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit, and how much of it is used.

    Attributes
    ----------
    name : str
        The name of the limit.
    of_code : Definition | None
        What the code of the workers says; None if no code has the limit.
    override : Definition | None
        What people have set, which takes precedence; None if nothing is set, or if it is off.
    is_off : bool
        Whether people have switched the limit off.
    held : int
        Due tasks that wait in lanes.
    lanes : int
        Lanes with held tasks.
    used : int
        Messages of all lanes that workers have.
    """

    name: str
    of_code: Definition | None
    override: Definition | None
    is_off: bool
    held: int
    lanes: int
    used: int

    @property
    def definition(self) -> Definition | None:
        """What counts; None if nothing is limited."""
        return None if self.is_off else self.override or self.of_code

    @property
    def definitions(self) -> Definitions:
        """What the code says, what people have set, and whether it is off."""
        return self.of_code, self.override, self.is_off

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {
            "name": self.name,
            "of_code": _as_dict(self.of_code),
            "override": _as_dict(self.override),
            "is_off": self.is_off,
            "definition": _as_dict(self.definition),
            **{name: getattr(self, name) for name in ("held", "lanes", "used")},
        }


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """The held tasks of one limit and one key.

    Attributes
    ----------
    limit, key : str
        The name of the limit, and the key. A key of more than 200 characters is its SHA-256.
    held : int
        Due tasks that wait in the lane.
    used : int
        Messages of the lane that workers have.
    next : datetime | None
        When the next task may start: the time of the reply if a worker may take it now. None while
        all tasks that the limit allows at once are with workers.
    """

    limit: str
    key: str
    held: int
    used: int
    next: datetime | None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {
            **{name: getattr(self, name) for name in ("limit", "key", "held", "used")},
            "next": None if self.next is None else self.next.isoformat(),
        }


@methods_name_arguments
class TaskLimits:
    """The limits of the app's broker.

    Workers store the limits of their code when they start. What people set is stored apart: it
    takes precedence, also after a start of workers.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._changes = LimitChanges(session)

    def list(self) -> list[LimitStatus]:
        """Return all limits that workers or people have stored, by name."""
        return self._session.ask(_statuses)

    def get(self, name: str) -> LimitStatus:
        """Return one limit.

        Raises
        ------
        InvalidLimit
            Neither Redis nor the app has a limit of this name.
        """
        of_code = self._changes.stored(name).of_code
        for each in self._session.ask(lambda stores: _statuses(stores, percent(name))):
            return each
        return LimitStatus(name, Definition.parse(of_code), None, False, 0, 0, 0)

    def set(
        self,
        name: str,
        *,
        rate: Any = _KEEP,
        burst: int = _KEEP,
        concurrency: int | None = _KEEP,
        fair: bool = _KEEP,
        off: bool = False,
    ) -> LimitStatus:
        """Change a limit for all workers, at once. What is not given stays as it is.

        The values take precedence over those in code, until :meth:`unset`. Of two calls at the same
        time both count; where they give the same option, the last one does. On a Redis Cluster,
        ``fsck --repair`` or the next call finishes an interrupted one.

        Parameters
        ----------
        rate, burst, concurrency, fair
            As for :class:`~celery_delayq.model.limits.Limit`; None for no rate or no concurrency.
        off : bool
            Limit nothing. A later call with values switches the limit on again.

        Raises
        ------
        InvalidLimit
            Neither Redis nor the app has a limit of this name, a value is invalid, nothing is
            given, or ``concurrency`` cannot hold, since a task of this app acknowledges early.
        """
        given = {"rate": rate, "burst": burst, "concurrency": concurrency, "fair": fair}
        given = {option: value for option, value in given.items() if value is not _KEEP}
        if bool(given) is off:
            raise InvalidLimit(
                f"limit {name!r}: give rate, burst, concurrency or fair, or off=True, and not both"
            )
        if off:
            self._changes.switch_off(name)
        else:
            self._changes.set(name, given)
        return self.get(name)

    def unset(self, name: str, *, code: bool = False) -> bool:
        """Forget what people have set, so that the code counts again.

        Parameters
        ----------
        code : bool
            Also forget what the code says: of a limit that the code does not have any more. Held
            tasks may go then. A running worker whose code still has the limit stores it again
            within a minute.

        Returns
        -------
        bool
            Whether something was stored.

        Raises
        ------
        InvalidLimit
            Neither Redis nor the app has a limit of this name, or *code* is given and the app's
            code has the limit: workers would store it again.
        """
        return bool(self._changes.forget(name, code=code))

    def lanes(self, name: str, n: int = 10) -> builtins.list[LaneStatus]:
        """Return the lanes of a limit with most held tasks, the longest first.

        All lanes are read, some hundred at a time.

        Parameters
        ----------
        n : int
            Most lanes to return.

        Raises
        ------
        InvalidLimit
            Neither Redis nor the app has a limit of this name, or *n* is not a number from 1.
        """
        if not is_integer(n, 1):
            raise InvalidLimit(f"lanes(n={n!r}): expected a whole number from 1")
        self._changes.stored(name)
        return self._session.ask(lambda stores: _longest(stores, percent(name), n))

    def ahead(self, task: ScheduledTask) -> int | None:
        """Return the number of tasks before a held task in its lane, in its queue; None for a task
        that is not held.

        So many of its lane start before it at most, apart from tasks of a higher priority that are
        sent later, and from those of other queues.
        """
        if task.state != "held":
            return None

        def count(stores: Stores) -> int:
            limits, due_ms = stores.of(task.queue).task_limits, due_of_eta(task.due).ms
            return limits.ahead(task.queue, task.lane, task.priority or 0, due_ms, task._name)

        return self._session.ask(count)


def _as_dict(definition: Definition | None) -> dict[str, Any] | None:
    if definition is None:
        return None
    return {
        "rate": definition.rate,
        "burst": definition.burst,
        "concurrency": definition.concurrency or None,
        "fair": definition.fair,
    }


def _statuses(stores: Stores, only: str | None = None) -> builtins.list[LimitStatus]:
    """Return all limits by name, or that one of a percent-encoded name."""
    found = definitions_in(stores)
    if only is not None:
        found = {name: each for name, each in found.items() if name == only}
    names = [*found]
    held, used, lanes = Counter[str](), Counter[str](), Counter[str]()
    for store in stores if names else ():
        limits = store.task_limits
        used.update(limits.used_by_limit(names))
    # A lane may have tasks in several queues.
    seen: set[str] = set()
    for queue, counts in _held_by_queue(stores, names).items():
        held.update(counts)
        if any(counts.values()):
            for page in stores.of(queue).task_limits.lanes(queue):
                new = (lane.partition(":")[0] for lane in page.keys() - seen)
                lanes.update(name for name in new if name in found)
                seen |= page.keys()
    return sorted(
        (
            _status(name, each, held=held[name], lanes=lanes[name], used=used[name])
            for name, each in found.items()
        ),
        key=lambda each: each.name,
    )


def _status(
    name: str, stored: StoredLimit, *, held: int = 0, lanes: int = 0, used: int = 0
) -> LimitStatus:
    return LimitStatus(unquote(name), *definitions_of(stored), held, lanes, used)


def _held_by_queue(stores: Stores, names: builtins.list[str]) -> dict[str, dict[str, int]]:
    if not names:
        return {}
    return stores.run_each(
        stores.registry(), lambda store, queue: store.task_limits.held_by_limit_steps(queue, names)
    )


def _longest(stores: Stores, limit: str, n: int) -> builtins.list[LaneStatus]:
    held, next_try = Counter[str](), dict[str, float]()
    for queue, counts in _held_by_queue(stores, [limit]).items():
        if not counts[limit]:
            continue
        store = stores.of(queue)
        seen: set[str] = set()
        for page in store.task_limits.lanes(queue):
            its = [lane for lane in page if lane.startswith(f"{limit}:") and lane not in seen]
            seen.update(its)
            for some in batches(its, PAGE_LANES):
                found = store.task_limits.held(queue, some)
                held.update(dict(zip(some, found, strict=True)))
            for lane in its:
                next_try[lane] = min(page[lane], next_try.get(lane, page[lane]))
    longest = nlargest(n, held.items(), key=lambda each: (each[1], each[0]))
    lanes = [lane for lane, number in longest if number]
    used, used_until = _use(stores, lanes)
    definition = definitions_in(stores).get(limit, StoredLimit()).definition
    now_us, statuses = stores.common.now_us(), []
    for lane in lanes:
        times_us = used_until[lane], next_try[lane], now_us
        next_us = next_start_us(definition, used[lane], *times_us)
        statuses.append(
            LaneStatus(
                unquote(limit),
                unquote(lane.partition(":")[2]),
                held[lane],
                used[lane],
                moment(int(next_us / 1000)) if isfinite(next_us) else None,
            )
        )
    return statuses


def _use(stores: Stores, lanes: builtins.list[str]) -> tuple[Counter[str], dict[str, float]]:
    """Return the number of leased messages of each lane in all stores, and the time (µs) up to
    which its slots are used.
    """
    used, used_until = Counter[str](), dict.fromkeys(lanes, 0.0)
    for store in stores:
        limits = store.task_limits
        for some in batches(lanes, PAGE_LANES):
            used.update(dict(zip(some, limits.used(some), strict=True)))
            for lane, until in zip(some, limits.used_until(some), strict=True):
                used_until[lane] = max(used_until[lane], until)
    return used, used_until
