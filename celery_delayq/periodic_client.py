"""Periodic entries: what people call as ``delayq.periodic``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from celery.canvas import Signature

from celery_delayq import periodic
from celery_delayq.clocks import moment_of
from celery_delayq.definitions import CatchUp, Definition, Overlap
from celery_delayq.entries import Outcome
from celery_delayq.errors import ConfigError, InvalidSchedule, PeriodicExists, PeriodicUnknown
from celery_delayq.periodic import Firing, Periodic
from celery_delayq.periodic_store import PeriodicStore, Writing
from celery_delayq.schedule_forms import describe
from celery_delayq.store import Store

if TYPE_CHECKING:
    from celery.schedules import BaseSchedule

    from celery_delayq.app import DelayQ

logger = logging.getLogger(__name__)

_UNCHANGED: Any = object()


class PeriodicTasks:
    """The periodic entries of the app's broker.

    All of one Redis database share one schedule. Entries in code, from ``beat_schedule`` and
    ``add_periodic_task``, are written by workers when they start, and are read, paused and run like
    others; what else is changed in them holds until any entry in that code changes.
    """

    def __init__(self, delayq: DelayQ) -> None:
        self._delayq = delayq

    def add(
        self,
        name: str,
        schedule: BaseSchedule | timedelta | float | datetime,
        task: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timezone: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        max_runs: int | None = None,
        catch_up: CatchUp = "one",
        catch_up_max: int = 100,
        overlap: Overlap = "allow",
        replace: bool = False,
        **options: Any,
    ) -> Periodic:
        """Add an entry.

        Parameters
        ----------
        name : str
            By which it is known; its tasks have the ids ``<name>:<ms since 1970>``.
        schedule : BaseSchedule | timedelta | float | datetime
            Any of Celery's, :class:`~celery_delayq.schedules.rrule`, seconds, or a moment for once.
        task : Task | Signature | str
            A task, its name, or with arguments and options ``task.s(…)``.
        replace : bool
            Take the place of an entry of that name, as :meth:`update` of all of it.
        **options
            Those of ``apply_async``: ``queue``, ``priority``, ``headers``, ``expires`` in seconds
            after the tick, and others.

        The other parameters are those of :class:`~celery_delayq.definitions.Definition`.

        Raises
        ------
        PeriodicExists
            There is one of that name.
        InvalidSchedule, ConfigError
            It could not be kept, or never fired.
        """
        kwargs = {} if kwargs is None else kwargs
        if isinstance(task, Signature):
            if args and task.args:
                raise ConfigError(f"args={args!r}: the signature has arguments, {task.args!r}")
            args, kwargs = args or task.args, {**task.kwargs, **kwargs}
            options, task = {**task.options, **options}, task.task
        definition = Definition.checked(
            schedule,
            name=name,
            task=getattr(task, "name", task),
            args=args,
            kwargs=kwargs,
            options=options,
            timezone=timezone,
            start=start,
            end=end,
            max_runs=max_runs,
            catch_up=catch_up,
            catch_up_max=catch_up_max,
            overlap=overlap,
        )

        tried = False

        def edit(there: Periodic | None, now: int) -> Periodic:
            nonlocal tried
            if there is None:
                tried = True
                return _due(periodic.begin(definition, now, self._zone))
            if replace:
                changed = periodic.change(there, definition, now, self._zone)
                return changed if there.status == "ended" else _due(changed)
            if tried and there.definition == definition and there.standing.count == 0:
                return there  # the answer to a first attempt was lost
            raise PeriodicExists(
                f"there is a periodic entry {name!r} already, made by {there.definition.source}; "
                "give another name, or replace=True"
            )

        return cast(Periodic, self._edit(name, edit))

    def update(self, name: str, *, schedule: Any = _UNCHANGED, **changes: Any) -> Periodic:
        """Change some of what :meth:`add` takes; ``options`` as a mapping, which replaces all.

        An interval keeps its phase: it goes on from the last tick. Ticks of the next two seconds
        may be scheduled already, and stay as they were.

        Raises
        ------
        PeriodicUnknown
            There is none of that name.
        InvalidSchedule, ConfigError
            It would be wrong so.
        """
        if "task" in changes:
            changes["task"] = getattr(changes["task"], "name", changes["task"])

        def edit(there: Periodic | None, now: int) -> Periodic:
            entry = self._required(name, there)
            unknown = sorted(changes.keys() - _CHANGEABLE)
            if unknown:
                raise ConfigError(
                    f"unknown: {', '.join(unknown)}; valid are: schedule, "
                    f"{', '.join(sorted(_CHANGEABLE))}"
                )
            old = entry.definition
            given = {each: getattr(old, each) for each in (*_CHANGEABLE, "source")} | changes
            new_schedule = old.schedule if schedule is _UNCHANGED else schedule
            definition = Definition.checked(new_schedule, name=name, **given)
            changed = periodic.change(entry, definition, now, self._zone)
            return changed if schedule is _UNCHANGED else _due(changed)

        return cast(Periodic, self._edit(name, edit))

    def remove(self, name: str) -> bool:
        """Remove an entry, with its ticks that are scheduled and not due yet; whether it was there.

        Tasks that are ready or run are left to run. An entry in code comes back when its code
        changes.
        """
        entry = None
        gate = self._gate()

        def edit(there: str | None) -> Writing | None:
            nonlocal entry
            if there is None:
                return None
            try:
                entry = Periodic.unpack(name, there)
            except ValueError:
                entry = None
            return Writing(name, there.partition("\n")[0], "")

        before = gate.edit(name, edit)
        if entry is not None:
            self._withdraw(entry)
        return before is not None

    def pause(self, name: str) -> Periodic:
        """Fire no ticks of an entry until :meth:`resume`; those that are not due yet are withdrawn.

        Raises
        ------
        PeriodicUnknown
            There is none of that name.
        """
        before: list[Periodic] = []

        def edit(there: Periodic | None, _: int) -> Periodic:
            entry = self._required(name, there)
            before[:] = [entry]
            return entry if entry.status == "paused" else periodic.pause(entry)

        paused = self._edit(name, edit)
        unfired = self._withdraw(before[0])
        if unfired:

            def correct(there: Periodic | None, _: int) -> Periodic | None:
                if there is None or there.standing != paused.standing:
                    return there
                return periodic.pause(there, unfired, self._zone)

            paused = self._edit(name, correct) or paused
        return cast(Periodic, paused)

    def resume(self, name: str) -> Periodic:
        """Go on with the next tick; those that passed meanwhile are not caught up.

        Raises
        ------
        PeriodicUnknown
            There is none of that name.
        """

        def edit(there: Periodic | None, now: int) -> Periodic:
            entry = self._required(name, there)
            return periodic.resume(entry, now, self._zone) if entry.status == "paused" else entry

        return cast(Periodic, self._edit(name, edit))

    def run_now(self, name: str) -> str | None:
        """Run the task of an entry once more, now; its ticks stay as they are.

        Returns
        -------
        str | None
            The id of the task; None where one of the entry runs, and ``overlap`` does not allow
            another.

        Raises
        ------
        PeriodicUnknown
            There is none of that name.
        """
        from celery_delayq.ticker import Gun

        now = self._delayq._ask(lambda store: store.now_ms())
        id, then = periodic.tick_id(name, now), None

        def shoot(store: Store) -> str | None:
            nonlocal then
            with Gun(self._delayq._required_app()) as gun:
                while True:
                    record = PeriodicStore(store).get(name)
                    entry = self._required(name, record and Periodic.unpack(name, record))
                    standing = entry.standing
                    if standing == then:
                        return id  # the answer to a first attempt was lost
                    then = replace(standing, count=standing.count + 1)
                    letters = gun.shoot(store, entry, Firing((now,), then, standing, now))
                    if letters != "-":
                        return None if letters in "KE" else id

        return self._delayq._ask(shoot)

    def get(self, name: str) -> Periodic | None:
        """Return an entry, None where there is none of that name."""
        record = self._gate().get(name)
        return None if record is None else Periodic.unpack(name, record)

    def list(self, source: str | None = None) -> list[Periodic]:
        """Return all entries, or those of one source, by name."""
        return sorted(
            {
                entry.name: entry
                for entry in self.iterate()
                if source is None or entry.definition.source == source
            }.values(),
            key=lambda entry: entry.name,
        )

    def iterate(self) -> Iterator[Periodic]:
        """Yield all entries, in no order and some perhaps twice.

        What cannot be read here, such as a class that is not there, is left out with a warning.
        """
        for name, record in self._gate().all():
            try:
                yield Periodic.unpack(name, record)
            except ValueError as exc:
                logger.warning("Periodic entry %r is left out: %s", name, exc)

    def next(self, name: str, count: int = 1) -> Sequence[datetime]:
        """Return the next ticks of an entry that are not scheduled yet, none where it is paused.

        Raises
        ------
        PeriodicUnknown
            There is none of that name.
        """
        entry = self._required(name, self.get(name))
        ticks = periodic.upcoming(entry, count, self._zone)
        return [moment_of(tick) for tick in ticks]

    @property
    def _zone(self) -> Any:
        return self._delayq._required_app().timezone

    def _gate(self) -> PeriodicStore:
        gate: PeriodicStore = self._delayq._ask(PeriodicStore)
        return gate

    def _edit(self, name: str, edit: Callable[[Periodic | None, int], Any]) -> Any:
        """Change an entry by a function of it and of Redis' clock (ms), and return it then."""
        result: Any = None

        def write(store: Store) -> Any:
            def change(there: str | None) -> Writing | None:
                nonlocal result
                before = None if there is None else Periodic.unpack(name, there)
                result = edit(before, store.now_ms())
                if result is None or result == before:
                    return None
                line = "" if before is None else before.standing.line
                return Writing(name, line, result.pack(), result.look)

            return PeriodicStore(store).edit(name, change)

        self._delayq._ask(write)
        return result

    def _required(self, name: str, entry: Any) -> Periodic:
        if not isinstance(entry, Periodic):
            raise PeriodicUnknown(f"there is no periodic entry {name!r}")
        return entry

    def _withdraw(self, entry: Periodic) -> Sequence[int]:
        """Cancel what is scheduled of an entry and not due yet, and return its ticks."""
        now = self._delayq._ask(lambda store: store.now_ms())
        ahead = periodic.ahead_of(entry, now, self._zone)
        ids = [periodic.tick_id(entry.name, tick) for tick in ahead]
        outcomes = self._delayq.cancel_ids(ids, reason="its periodic entry fires no more")
        return [
            tick for tick, outcome in zip(ahead, outcomes, strict=True) if outcome is Outcome.DONE
        ]


def _due(entry: Periodic) -> Periodic:
    """Return an entry that has a tick (InvalidSchedule)."""
    definition = entry.definition
    if entry.status == "ended":
        raise InvalidSchedule(
            f"{entry.name}: {describe(definition.schedule)} is never due from now on"
            + ("" if definition.end is None else f" until end={definition.end}")
        )
    return entry


#: What a definition says, but for what has its own parameter and what it is known by.
_CHANGEABLE = frozenset(
    each.name
    for each in fields(Definition)
    if each.init and each.name not in ("name", "source", "schedule")
)
