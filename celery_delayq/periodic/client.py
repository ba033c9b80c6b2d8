"""Public API of periodic entries: ``delayq.periodic``."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import starmap
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from celery.canvas import Signature

from celery_delayq.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    ConfigError,
    PeriodicExists,
)
from celery_delayq.model.scheduled import Outcome
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import register_schedules
from celery_delayq.periodic.definition import (
    CatchUp,
    Definition,
    Overlap,
    changed_definition,
    check_call,
)
from celery_delayq.periodic.entries import (
    Periodic,
    PeriodicState,
    UnreadableEntry,
    read_entry,
    required,
)
from celery_delayq.periodic.places import check_place, entries_of
from celery_delayq.periodic.policy import Firing
from celery_delayq.periodic.serialization import dumps_form
from celery_delayq.periodic.wall_clock import datetime_of_ms
from celery_delayq.schedule.client import Schedule
from celery_delayq.store.periodic import OVERLAP_CODES, EntryWrite
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.delegation import methods_name_arguments

if TYPE_CHECKING:
    from celery.schedules import BaseSchedule


logger = logging.getLogger(__name__)


@methods_name_arguments
class PeriodicTasks:
    """The periodic entries of the app's broker.

    All apps of one Redis database share the entries. Workers write the entries in code
    (``beat_schedule``, ``add_periodic_task``) when they start. A change of such an entry by a call
    lasts until the entry's code changes.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._schedule = Schedule(session)
        register_schedules(session.app)

    def add(
        self,
        /,
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
        catch_up_max: int | None = None,
        overlap: Overlap = "allow",
        replace: bool = False,
        **options: Any,
    ) -> Periodic:
        """Add an entry.

        Parameters that are not listed are the attributes of
        :class:`~celery_delayq.periodic.definition.Definition`.

        Parameters
        ----------
        name : str
            Name of the entry. Its tasks have the ids ``<name>:<ms since 1970>``.
        schedule : BaseSchedule | timedelta | float | datetime
            A schedule of Celery, :class:`~celery_delayq.schedules.rrule`, seconds, or a datetime
            for a single run.
        start, end : datetime | None
            No tick is before *start* or after *end*. Datetimes without a time zone are in
            *timezone*, or in the app's time zone if *timezone* is None.
        catch_up_max : int | None
            Only with ``catch_up="all"``. None for 100.
        task : Task | Signature | str
            A task, the name of a task, or ``task.s(…)`` with arguments and options.
        replace : bool
            Replace an existing entry of this name, as :meth:`update` of all fields does.
        **options
            Options of ``apply_async``, such as ``queue``, ``priority``, ``headers``, or ``expires``
            in seconds after the tick.

        Raises
        ------
        PeriodicExists
            There is an entry of this name.
        InvalidSchedule, ConfigError
            A value is invalid, the entry would never be due, or the task does not take the
            arguments. A task that this app does not know, or with an ``apply_async`` of its own,
            may take any.
        NotSupported
            The broker is not Redis, or the exchange of the entry routes to queues of several hash
            tags of a Redis Cluster.
        """
        self._session.check_broker()
        kwargs = {} if kwargs is None else kwargs
        if isinstance(task, Signature):
            if args and task.args:
                raise ConfigError(f"args={args!r}: the signature has arguments, {task.args!r}")
            args, kwargs = args or task.args, {**task.kwargs, **kwargs}
            options, task = {**task.options, **options}, task.task
        most = {} if catch_up_max is None else {"catch_up_max": catch_up_max}
        definition = Definition.from_fields(
            schedule,
            zone=self._zone,
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
            overlap=overlap,
            **most,
        )
        check_call(self._session.app, definition)

        added: PeriodicState | None = None

        def edit(stored: Periodic | UnreadableEntry | None, now: int) -> Periodic:
            nonlocal added
            if stored is None or (replace and isinstance(stored, UnreadableEntry)):
                begun = policy.must_be_due(policy.begin(definition, now, self._zone))
                added = begun.state
                return begun
            if isinstance(stored, UnreadableEntry):
                raise PeriodicExists(
                    f"there is a periodic entry {name!r} already, which cannot be read here; give "
                    "another name, or replace=True"
                )
            if replace:
                changed = policy.change(stored, definition, now, self._zone)
                return changed if stored.status == "ended" else policy.must_be_due(changed)
            if added is not None and added.has_same_origin(stored.state):
                return stored  # an earlier attempt has added it, and the reply was lost
            raise PeriodicExists(
                f"there is a periodic entry {name!r} already, made by {stored.definition.source}; "
                "give another name, or replace=True"
            )

        return cast(Periodic, self._edit(name, edit))

    def update(self, /, name: str, **changes: Any) -> Periodic:
        """Change some fields of an entry. *changes* are parameters of :meth:`add`.

        *options* is a mapping that replaces all options. A field that is None gets its default:
        ``end=None`` removes the end, ``catch_up=None`` means ``"one"``. A ``catch_up`` other than
        ``"all"`` removes ``catch_up_max``.

        A new interval starts at the last tick. Ticks that are scheduled already (those of the next
        two seconds) stay scheduled.

        Raises
        ------
        PeriodicUnknown
            There is no entry of this name.
        InvalidSchedule, ConfigError
            A value is invalid, or the task does not take the new arguments.
        RecordError, ScheduleNotImportable
            This process cannot read the entry.
        """
        if "task" in changes:
            changes["task"] = getattr(changes["task"], "name", changes["task"])

        def edit(stored: Periodic | None, now: int) -> Periodic:
            entry = required(name, stored)
            definition = changed_entry(self, entry.definition, changes)
            changed = policy.change(entry, definition, now, self._zone)
            return policy.must_be_due(changed) if "schedule" in changes else changed

        return cast(Periodic, self._edit(name, edit))

    def remove(self, name: str) -> bool:
        """Remove an entry and its scheduled ticks; return whether the entry existed.

        Ready and running tasks still run. A removed entry in code returns when its code changes.
        Scheduled ticks (those of the next two seconds) of an entry that this process cannot read
        may stay.
        """
        entry: Periodic | UnreadableEntry | None = None

        def remove(record: str | None) -> EntryWrite | None:
            nonlocal entry
            if record is None:
                return None  # perhaps an earlier attempt has removed it
            entry = read_entry(name, record)
            return EntryWrite(name, record.partition("\n")[0], "")

        self._session.ask(lambda stores: entries_of(self._session.app, stores).edit(name, remove))
        if isinstance(entry, Periodic):
            self._cancel_ticks(entry)
        return entry is not None

    def pause(self, name: str) -> Periodic | UnreadableEntry:
        """Pause an entry until :meth:`resume`, and cancel its scheduled ticks.

        Scheduled ticks (those of the next two seconds) of an entry that this process cannot read
        may stay.

        Raises
        ------
        PeriodicUnknown
            There is no entry of this name.
        RecordError
            The state of the entry is unreadable too.
        """

        def edit(stored: Periodic | UnreadableEntry | None, _: int) -> Periodic | UnreadableEntry:
            if isinstance(stored, UnreadableEntry):
                return stored.as_paused()
            entry = required(name, stored)
            return entry if entry.status == "paused" else policy.pause(entry)

        paused: Periodic | UnreadableEntry = self._edit(name, edit)
        cancelled = () if isinstance(paused, UnreadableEntry) else self._cancel_ticks(paused)
        if cancelled:

            def subtract(stored: Periodic | None, _: int) -> Periodic | None:
                """Subtract the cancelled ticks, unless the entry has changed since."""
                if stored is None or stored.state != paused.state:
                    return stored
                return policy.pause(stored, cancelled, self._zone)

            paused = self._edit(name, subtract) or paused
        return paused

    def resume(self, name: str) -> Periodic:
        """Resume an entry with its next tick. Ticks during the pause are not caught up.

        Raises
        ------
        PeriodicUnknown
            There is no entry of this name.
        RecordError, ScheduleNotImportable
            This process cannot read the entry.
        """

        def edit(stored: Periodic | None, now: int) -> Periodic:
            entry = required(name, stored)
            return policy.resume(entry, now, self._zone) if entry.status == "paused" else entry

        return cast(Periodic, self._edit(name, edit))

    def run_now(self, name: str) -> str | None:
        """Run the task of an entry once, now. Its ticks and ``max_runs`` do not change.

        Returns
        -------
        str | None
            The id of the task. None if a task of the entry waits or runs and ``overlap`` is not
            ``"allow"``.

        Raises
        ------
        PeriodicUnknown
            There is no entry of this name.
        """
        manual_id = uuid4().hex[:16]
        id = f"{name}:{manual_id}"

        from celery_delayq.periodic.firing import TickScheduler

        def fire(stores: Stores) -> str | None:
            with TickScheduler(self._session.app, stores) as scheduler:
                while True:
                    records = ((store, store.periodic.get(name)) for store in stores)
                    found = (each for each in records if each[1] is not None)
                    store, record = next(found, (stores.common, None))
                    entry = required(name, record and Periodic.unpack(name, record))
                    state = entry.state
                    if state.manual_id == manual_id:
                        return id  # the reply to an earlier attempt was lost
                    runs = state.manual_runs + 1
                    then = replace(state, manual_runs=runs, manual_id=manual_id)
                    now = store.now_ms()
                    firing = Firing(ticks=(now,), then=then, refused=state, now=now)
                    (codes,) = scheduler.fire(store, [(entry, firing)], id)
                    if codes != "-":
                        return None if codes in OVERLAP_CODES else id

        return self._session.ask(fire)

    def get(self, name: str) -> Periodic | None:
        """Return an entry, or None if there is no entry of this name.

        Raises
        ------
        RecordError, InvalidSchedule, ScheduleNotImportable
            This process cannot read the entry: see :meth:`unreadable`.
        """
        record: str | None = self._session.ask(
            lambda stores: entries_of(self._session.app, stores).get(name)
        )
        return None if record is None else Periodic.unpack(name, record)

    def list(self, source: str | None = None) -> list[Periodic]:
        """Return the entries, or only the entries of one source, sorted by name.

        Unreadable entries are left out with a warning. :meth:`unreadable` returns them.
        """
        entries = _readable(self._all())
        return [each for each in entries if source in (None, each.definition.source)]

    def iterate(self) -> Iterator[Periodic]:
        """Return an iterator over all entries. The order is arbitrary, and entries may be repeated.

        Unreadable entries are left out with a warning.
        """
        return _readable(starmap(read_entry, self._records(self._session.stores)))

    def unreadable(self) -> builtins.list[UnreadableEntry]:
        """Return the entries that this process cannot read, with their errors, sorted by name.

        :meth:`pause` and :meth:`remove` accept these entries.
        """
        return [entry for entry in self._all() if isinstance(entry, UnreadableEntry)]

    def _all(self) -> builtins.list[Periodic | UnreadableEntry]:
        return [*starmap(read_entry, sorted(dict(self._records(self._session.stores)).items()))]

    def _records(self, stores: Stores) -> Iterator[tuple[str, str]]:
        """Yield name and record of every entry, unordered; some may come twice."""
        app = self._session.app
        try:
            yield from entries_of(app, stores).all()
        except BrokerTimeout:
            raise
        except BrokerUnavailable:
            yield from self._session.ask(lambda stores: [*entries_of(app, stores).all()])

    def next(self, name: str, count: int = 1) -> Sequence[datetime]:
        """Return the next ticks of an entry that are not scheduled yet; none for a paused entry.

        Raises
        ------
        PeriodicUnknown
            There is no entry of this name.
        RecordError, InvalidSchedule, ScheduleNotImportable
            This process cannot read the entry, or its schedule fails.
        """
        entry = required(name, self.get(name))
        return [datetime_of_ms(tick) for tick in policy.upcoming(entry, count, self._zone)]

    @property
    def _zone(self) -> Any:
        return self._session.app.timezone

    def _edit(self, name: str, edit: Callable[[Any, int], Any]) -> Any:
        """Change an entry by a function of the entry and Redis' clock (ms); return the result."""
        result: Any = None

        def write(stores: Stores) -> Any:
            def change(record: str | None) -> EntryWrite | None:
                nonlocal result
                before = None if record is None else read_entry(name, record)
                result = edit(before, stores.now_ms())
                if result is None or result == before:
                    return None
                # An unreadable entry has no definition.
                definition: Any = getattr(result, "definition", None)
                if definition != getattr(before, "definition", None):
                    check_place(self._session.app, stores, definition)
                line = (record or "").partition("\n")[0]
                return EntryWrite(name, line, result.pack(), result.next_look_ms)

            return entries_of(self._session.app, stores).edit(name, change)

        self._session.ask(write)
        return result

    def _cancel_ticks(self, entry: Periodic) -> Sequence[int]:
        """Cancel the scheduled ticks of an entry, and return them."""
        ahead = policy.ahead_of(entry, self._zone)
        ids = [policy.tick_id(entry.name, tick) for tick in ahead]
        reason = "its periodic entry fires no more"
        outcomes = self._schedule.cancel_ids(ids, if_due=ahead, reason=reason, ready=False)
        return [
            tick for tick, outcome in zip(ahead, outcomes, strict=True) if outcome is Outcome.DONE
        ]


def _readable(entries: Iterable[Periodic | UnreadableEntry]) -> Iterator[Periodic]:
    for entry in entries:
        if isinstance(entry, Periodic):
            yield entry
        else:
            logger.warning("Periodic entry %r is left out: %s", entry.name, entry.problem)


def changed_entry(
    periodic: PeriodicTasks, definition: Definition, changes: Mapping[str, Any]
) -> Definition:
    """Return a definition with other fields; raises the errors of :meth:`PeriodicTasks.update`."""
    changed = changed_definition(definition, changes, periodic._zone)
    if not changes.keys().isdisjoint(("task", "args", "kwargs")):
        check_call(periodic._session.app, changed)
    return changed


def swap_entry(periodic: PeriodicTasks, before: Definition, after: Definition) -> Outcome:
    """Give an entry another definition, unless the entry has another one than *before*.

    Returns
    -------
    Outcome
        ``DONE``; ``CHANGED`` for another definition; ``UNKNOWN`` if there is no such entry.

    Raises
    ------
    InvalidSchedule
        The new schedule has no tick left.
    """
    outcome = Outcome.DONE

    def edit(stored: Periodic | UnreadableEntry | None, now: int) -> Any:
        nonlocal outcome
        if not isinstance(stored, Periodic):
            outcome = Outcome.UNKNOWN if stored is None else Outcome.CHANGED
            return stored
        text = stored.definition.dumps()
        is_same = text == before.dumps()
        outcome = Outcome.DONE if is_same or text == after.dumps() else Outcome.CHANGED
        if not is_same:
            return stored
        changed = policy.change(stored, after, now, periodic._zone)
        is_rescheduled = dumps_form(after.schedule) != dumps_form(before.schedule)
        return policy.must_be_due(changed) if is_rescheduled else changed

    periodic._edit(before.name, edit)
    return outcome
