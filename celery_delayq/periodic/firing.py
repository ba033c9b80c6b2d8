"""Makes the messages of ticks, and schedules them if the state of the entry has not changed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from celery import Celery

from celery_delayq.model.envelope import Entry, with_skip_after
from celery_delayq.periodic import policy
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.places import check_queues
from celery_delayq.periodic.policy import Firing
from celery_delayq.periodic.wall_clock import datetime_of_ms
from celery_delayq.schedule.items import Item, ItemReader
from celery_delayq.schedule.message_factory import MessageFactory
from celery_delayq.store.periodic import STORED_CODES, EntryTicks, EntryWrite, fired
from celery_delayq.store.scripting.pipelining import PipelinedCalls
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import portions

#: Seconds of sleep after each entry, so that other threads of the worker get the GIL.
REST_SECONDS = 0.0001

#: Most messages of one script call.
CALL_MESSAGES = 100


class TickScheduler:
    """Makes the messages of ticks, and schedules them.

    Parameters
    ----------
    app : Celery
        Makes and routes the messages.
    stores : Stores
        All stores of the broker.
    """

    def __init__(self, app: Celery, stores: Stores) -> None:
        self._stores = stores
        self._deadline = cron_deadline(app)
        self._reader = ItemReader(app, None, {})
        self._maker = MessageFactory(app, {})

    def __enter__(self) -> TickScheduler:
        self._maker.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._maker.__exit__(*exc)

    def fire(
        self,
        store: Store,
        firings: Sequence[tuple[Periodic, Firing]],
        id: str | None = None,
    ) -> list[str]:
        """Schedule the ticks of entries, and store the next states of the entries.

        Parameters
        ----------
        store : Store
            The store of the entries. Ticks for queues of another store are refused.
        id : str | None
            Task id of a manual run. None for ticks, whose ids come from :func:`.policy.tick_id`.

        Returns
        -------
        list[str]
            The codes of ``periodic/fire.lua`` for each entry: ``"-"`` if the state of the entry has
            changed since it was read, ``""`` if the entry has no tick to schedule.

        Raises
        ------
        Exception
            A message cannot be made, Redis cannot be reached, or a queue is broken. Some of the
            entries may be fired already. Firing all of them again is safe.
        """
        codes = [""] * len(firings)
        by_queue: dict[str, list[tuple[int, EntryTicks]]] = defaultdict(list)
        passed: list[EntryWrite] = []
        gate = store.periodic
        for index, (entry, firing) in enumerate(firings):
            made = self._make(entry, firing, id)
            check_queues(self._stores, made, store)
            time.sleep(REST_SECONDS)
            if not made:
                then = replace(entry, state=firing.then)
                passed.append(
                    EntryWrite(entry.name, entry.state.line, then.pack(), then.next_look_ms)
                )
            elif len(made) == 1:
                ((queue, entries),) = made.items()
                by_queue[queue].append((index, _ticks_of(entry, firing, entries)))
            else:
                # The first queue decides about the unique key, so all processes need the same order
                # of queues. kombu returns the queues unordered.
                queues = dict(sorted(made.items()))
                codes[index] = gate.fire_in_all(_ticks_of(entry, firing), queues)

        def note(indexes: Iterable[int], reply: Any) -> None:
            for index, each in zip(indexes, fired(reply), strict=True):
                codes[index] = each

        with PipelinedCalls(lambda question: question(store)) as line:
            for queue, some in by_queue.items():
                for part in portions(
                    some, CALL_MESSAGES, _bytes_of, lambda each: len(each[1].entries)
                ):
                    indexes, ticks = zip(*part, strict=True)
                    line.send(queue, gate.fire_call(queue, ticks), partial(note, indexes))
        if passed:
            gate.write(passed)
        return codes

    def _make(self, entry: Periodic, firing: Firing, id: str | None) -> dict[str, list[Entry]]:
        """Return the messages of the ticks by queue. An exchange may route to several queues.

        The option ``expires`` counts from the tick and becomes a moment. Workers compare the moment
        with their own clock, as for all tasks.
        """
        definition = entry.definition
        options = dict(definition.options)
        expires = options.pop("expires", None)
        given = {name: options.pop(name, None) for name in ("queue", "priority")}
        if definition.overlap != "allow":
            name = definition.name.replace("{", "{{").replace("}", "}}")
            options |= {
                "unique_key": f"periodic:{name}",
                "on_conflict": "keep",
                "unique_scope": "done",
            }
        found: dict[str, list[Entry]] = defaultdict(list)
        limits = policy.drop_after(entry, firing, self._deadline)
        for tick, limit in zip(firing.ticks, limits, strict=True):
            at = datetime_of_ms(tick)
            item = Item(
                definition.args,
                dict(definition.kwargs),
                eta=at,
                id=id or policy.tick_id(definition.name, tick),
                task=definition.task,
                expires=None if expires is None else at + timedelta(seconds=expires),
                options=options,
                **given,
            )
            job = self._reader.read(item)
            try:
                queues, made = self._maker.make(job)
            except TypeError:
                # The arguments do not fit the task. The worker that runs the task reports the error
                # and dead-letters the task.
                queues, made = self._maker.make(job._replace(target=job.target._replace(task=None)))
            for queue in queues:
                found[queue].append(with_skip_after(made, limit))
        return found


def cron_deadline(app: Celery) -> int | None:
    """Return the setting ``beat_cron_starting_deadline`` of an app in ms, or None."""
    seconds = app.conf.beat_cron_starting_deadline
    return None if seconds is None else int(seconds * 1000)


def stored(codes: Iterable[str]) -> int:
    """Return the number of stored ticks from the codes of entries."""
    return sum(code in STORED_CODES for each in codes for code in each)


def _bytes_of(ticks: tuple[int, EntryTicks]) -> int:
    return sum(len(entry.data) for entry in ticks[1].entries)


def _ticks_of(entry: Periodic, firing: Firing, entries: Sequence[Entry] = ()) -> EntryTicks:
    then, refused = replace(entry, state=firing.then), replace(entry, state=firing.refused)
    look = refused.next_look_ms
    if firing.refused == entry.state and look is not None and look <= firing.now:
        look = firing.now + policy.OVERLAP_RETRY_MS
    return EntryTicks(
        entry.name,
        entry.state.line,
        then.state.line,
        then.next_look_ms,
        refused.state.line,
        look,
        entries,
    )
