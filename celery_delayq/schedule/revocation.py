"""Revokes: scheduled tasks are cancelled at once, and revoked ids are stored in Redis."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kombu.utils.functional import maybe_list

from celery_delayq.errors import ConfigError
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.envelope import Label
from celery_delayq.model.names import check_name
from celery_delayq.model.payload import MessageFields, TaskMessage
from celery_delayq.model.scheduled import Bulk
from celery_delayq.model.script_values import Name, to_text
from celery_delayq.schedule.client import Schedule
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.scan import PAGE_MESSAGES
from celery_delayq.store.scripting.calls import Command, Steps
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.utils import message_json
from celery_delayq.utils.delegation import methods_name_arguments
from celery_delayq.utils.portions import batches

#: Ids that one script call cancels.
CANCEL_BATCH = 100

#: Entries after which a walk over the schedule reports its progress.
PROGRESS_ENTRIES = 1000


@methods_name_arguments
class Revocation:
    """Revokes tasks of one app."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask = session.ask
        self._schedule = Schedule(session)

    def revoke(self, ids: Iterable[str]) -> None:
        """Store ids in Redis, then cancel scheduled tasks with these ids.

        In this order workers refuse a task that is promoted in between. A worker also refuses ready
        tasks, and reports them to their chord. Unique keys of ready tasks are free at once.
        """
        for batch in batches(dict.fromkeys(map(str, ids)), CANCEL_BATCH):
            self._store(ids=batch)
            self._schedule.cancel_revoked(batch)

    def revoke_by_stamps(self, stamps: Mapping[str, Any]) -> None:
        """Store stamped headers in Redis, and cancel scheduled tasks that have one of them.

        Reads the whole schedule, and the ready lists of queues with unique keys.
        """
        self._store(stamps=stamps)
        self._cancel_all(lambda entry: _has_stamp(entry, stamps))

    def revoke_new(self, ids: Sequence[str]) -> None:
        """Revoke those of the ids that Redis does not have yet."""
        if new := self._ask(lambda stores: stores.not_revoked(ids)):
            self.revoke(new)

    def revoke_new_stamps(self, stamps: Mapping[str, Any]) -> None:
        """Revoke by stamps unless Redis has these stamps already."""
        if self._ask(lambda stores: stores.not_revoked((), stamps)):
            self.revoke_by_stamps(stamps)

    def cancel_canvas(
        self,
        *,
        root_id: str | None = None,
        group_id: str | None = None,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Cancel all tasks of a group, or of a chain, chord or tree by the id of its first task.

        The whole schedule is read, and scheduled tasks are cancelled at once. For
        ``revoke_expires`` seconds workers refuse ready tasks, and tasks that running tasks send.
        Unique keys of ready tasks are free at once.

        Parameters
        ----------
        root_id, group_id : str | None
            Exactly one of them.
        progress : Callable[[Bulk], object] | None
            Called after each batch of tasks, and each 1,000 entries, which ``found`` counts.

        Returns
        -------
        Bulk
            The outcomes of scheduled tasks.

        Raises
        ------
        InvalidFilter
            The id is no text.
        ConfigError
            Both ids are given, or none.
        """
        check_name("root_id", root_id)
        check_name("group_id", group_id)
        if (root_id is None) == (group_id is None):
            raise ConfigError(f"root_id={root_id!r}, group_id={group_id!r}: give one of them")
        canvas = Canvas("r", root_id) if root_id is not None else Canvas("g", group_id or "")
        self._store(canvas=canvas)
        return self._cancel_all(
            lambda task: canvas in Canvas.all_of(task.headers, task.own), progress or bool
        )

    def _cancel_all(
        self,
        matches: Callable[[MessageFields], bool],
        progress: Callable[[Bulk], object] = bool,
    ) -> Bulk:
        """Cancel scheduled tasks that match, then free the unique keys of ready tasks that match.

        The ready lists are read second, from the end where tasks are added. So tasks that are
        promoted in between are found.
        """
        bulk = Bulk(dry_run=False)

        def found() -> Iterator[str]:
            for each in self._schedule.entries():
                bulk.found += 1
                if bulk.found % PROGRESS_ENTRIES == 0:
                    progress(bulk)
                if matches(each):
                    yield each.id

        for batch in batches(found(), CANCEL_BATCH):
            outcomes = self._schedule.cancel_revoked(batch)
            bulk.total += len(outcomes)
            bulk.outcomes.update(outcomes)
            progress(bulk)
        for queue, layout in self._ask(_queues_with_ready).items():
            self._ask(partial(_free_ready, queue, layout, matches))
        return bulk

    def _store(
        self,
        ids: Sequence[str] = (),
        stamps: Mapping[str, Any] | None = None,
        canvas: Canvas | None = None,
    ) -> None:
        options = self._session.app.conf.broker_transport_options
        seconds = Settings.from_options(options).revoke_expires
        self._ask(lambda stores: stores.revoke(seconds, ids, stamps, canvas))


def _queues_with_ready(stores: Stores) -> dict[str, Layout]:
    """Return the queues that have ready messages, with their layouts."""
    known = queues_of(stores, None)

    def steps(store: Store, queue: str) -> Steps[int]:
        lists = store.keys.ready_lists(queue, known[queue])
        number: int = yield Command.of("EXISTS", *lists, store.keys.queue(queue).quarantined)
        return number

    found = stores.run_each(known, steps)
    return {queue: known[queue] for queue, number in found.items() if number}


def _free_ready(
    queue: str, layout: Layout, matches: Callable[[MessageFields], bool], stores: Stores
) -> None:
    """Free the unique keys of ready tasks of a queue that match."""
    store = stores.of(queue)
    if not store.client.exists(store.keys.queue(queue).unique):
        return
    for ready_list in store.keys.ready_lists(queue, layout):
        pages = store.scan.messages(ready_list, 0, sys.maxsize, PAGE_MESSAGES, newest=True)
        for page in pages:
            labels = [label for each in page if (label := _label_of(each, matches))]
            names = [to_text(name) for label in labels for name in (label.id + b"\0", label.name)]
            store.control.cancel(queue, layout, [*map(Name, names)], ready="free")


def _label_of(data: bytes, matches: Callable[[MessageFields], bool]) -> Label | None:
    """Return the label of a ready message that matches and has a unique key, or else None."""
    label = Label.of(data)
    if label is None or label.unique == b"-":
        return None
    try:
        message = message_json.decode(data)
        return label if matches(TaskMessage(message)) else None
    except (ValueError, TypeError, AttributeError):
        return None  # the message of another producer may be anything


def _has_stamp(entry: MessageFields, wanted: Mapping[str, Any]) -> bool:
    """Return whether a task has one of the stamps, by the rule of Celery's ``Request.revoked``."""
    its = entry.headers.get("stamps") or {}
    return any(
        set(map(str, maybe_list(its[name]) or [])) & set(map(str, maybe_list(values) or []))
        for name, values in wanted.items()
        if name in its
    )
