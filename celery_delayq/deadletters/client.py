"""Public API of dead letters: replay and purge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

from celery_delayq.deadletters.other_store import schedule_in_other_store
from celery_delayq.deadletters.reader import DeadLetterReader, check_filter, counts_of
from celery_delayq.deadletters.replay import ReplayChanges, replay_entry
from celery_delayq.errors import ConfigError, InvalidETA, InvalidOption, RecordError
from celery_delayq.integration.not_run import note_purged
from celery_delayq.integration.worker_checks import warn_of_naive_eta
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter, DeadLetterRecord
from celery_delayq.model.envelope import Due, due_of_countdown, due_of_eta
from celery_delayq.model.lookup import StatusCode
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Outcome, moment
from celery_delayq.store.dead_letters import Replay, ReplayedInPlace, read_codes
from celery_delayq.store.paging import queues_of
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.pipelining import PipelinedCalls
from celery_delayq.store.stores import Stores
from celery_delayq.utils.foreign import record_errors
from celery_delayq.utils.numbers import is_finite
from celery_delayq.utils.portions import portions

logger = logging.getLogger(__name__)

#: Dead letters that one script call changes.
CHANGE_BATCH = 40

_QUEUE: Callable[[DeadLetter], str] = attrgetter("queue")


class Change(NamedTuple):
    """A change of dead letters; *call* changes the dead letters with the indexes *places*."""

    dead_letters: Sequence[DeadLetter]
    call: Call | None
    places: Sequence[int]
    after: Callable[[Sequence[DeadLetter]], None] | None = None
    #: Status codes that are known before the call, by the index of the dead letter.
    known: Mapping[int, StatusCode] = MappingProxyType({})

    def status_codes(self, reply: Any) -> Sequence[StatusCode]:
        """Return the status code of each dead letter from the reply."""
        status_codes: list[StatusCode] = ["x"] * len(self.dead_letters)
        for place, state in self.known.items():
            status_codes[place] = state
        for place, state in zip(self.places, read_codes(reply or b""), strict=True):
            status_codes[place] = state
        if self.after is not None:
            done = zip(self.dead_letters, status_codes, strict=True)
            self.after([dead_letter for dead_letter, state in done if state == "d"])
        return status_codes


class DeadLetters(DeadLetterReader):
    """Dead letters: list, replay, purge. Called as ``delayq.dead_letters``."""

    def replay(
        self,
        dead_letter: DeadLetter | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        eta: datetime | str | None = None,
        countdown: float | None = None,
    ) -> Outcome:
        """Run the task of a dead letter again, with all its attempts, and delete the dead letter.

        On Redis both happen in one step. On RabbitMQ, and on a Redis Cluster for a *queue* of
        another hash tag, two replays at the same time run the task twice.

        Parameters
        ----------
        dead_letter : DeadLetter | str
            A dead letter or its id.
        args, kwargs, queue
            New values for the task and its retries.
        eta, countdown
            When the task is due; without either it runs at once.

        Returns
        -------
        Outcome
            ``DONE``; ``UNKNOWN`` if the dead letter does not exist any more; ``CHANGED`` if another
            dead letter has its id now; ``CONFLICT`` if another task has its unique key;
            ``UNREADABLE`` if it is no task message.

        Raises
        ------
        ConfigError
            The arguments have a wrong type, or are not JSON.
        InvalidFilter, InvalidETA
            *queue* is not a valid name; *eta* or *countdown* is not a time, or both are given.
        NoQueue, QueueFull, InvalidOption
            RabbitMQ refuses the message; the dead letter stays.
        """
        found = self._dead_letter(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        due = due_of(eta, countdown)
        warn_of_naive_eta(self._session.app, eta)
        changes = ReplayChanges(args, kwargs, queue).check()
        change = self._replay_change(found.queue, [found], changes, [due], uuid4().hex)
        return self._make_change(found.queue, change)

    def replay_all(
        self,
        filter: DeadFilter,
        *,
        rate: float | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Replay all dead letters that match a filter; in each queue in the order of their deaths.

        Parameters
        ----------
        rate : float | None
            Tasks per second, 0.001 to 1,000,000: the tasks are scheduled with that distance, and
            this call does not wait for them. None: all tasks run at once.
        args, kwargs, queue
            New values for the tasks, as for :meth:`replay`.
        dry_run : bool
            Only count the dead letters.
        everything : bool
            Required for a filter that matches all dead letters.
        progress : Callable[[Bulk], object]
            Called after each batch of at most 100.

        Raises
        ------
        ConfigError
            *rate* is not in its range, the arguments are no JSON, or the filter matches everything
            and *everything* is not set.
        InvalidFilter
            The filter has a wrong type, or *queue* is not a valid name.
        """
        check_rate(rate)
        changes = ReplayChanges(args, kwargs, queue).check()
        start, run = self._session.now_ms(), uuid4().hex

        def change(name: str, dead_letters: Sequence[DeadLetter], before: int) -> Any:
            dues = [
                Due(0) if rate is None else Due(start + int((before + n) * 1000 / rate))
                for n in range(len(dead_letters))
            ]
            return self._replay_change(name, dead_letters, changes, dues, run)

        plain = rate is None and changes == ReplayChanges()
        return self._change_all(
            filter, change, dry_run, everything, progress, replay_in_place=plain
        )

    def _replay_change(
        self,
        queue: str,
        dead_letters: Sequence[DeadLetter],
        changes: ReplayChanges,
        dues: Sequence[Due],
        run: str,
    ) -> Any:
        """Return the change that replays dead letters of *queue* into one queue."""
        to, token = changes.queue or queue, uuid4().hex
        layout = self._ask(lambda stores: queues_of(stores, to)[to])
        replays: dict[int, Replay] = {}
        for place, (dead_letter, due) in enumerate(zip(dead_letters, dues, strict=True)):
            # The message id differs in its first half, which is the part that scripts use.
            message_id = f"{place:04x}{token[4:]}"
            try:
                with record_errors("message"):
                    entry = replay_entry(dead_letter, layout, due, changes, message_id, run)
            except (RecordError, InvalidOption) as exc:
                # The message of another producer may be anything.
                logger.warning("Dead letter %r is not replayed: %r", dead_letter.id, exc)
                continue
            # If another task has the unique key now, the replay is refused.
            if entry.policy:
                entry = entry._replace(policy="e 0 0")
            replays[place] = Replay(
                dead_letter.dead_lettered.id, dead_letter.dead_lettered.died_ms, entry
            )
        call: Call | None = None
        known: dict[int, StatusCode] = {}
        if self._ask(lambda stores: stores.of(queue) is not stores.of(to)):
            replays, known = schedule_in_other_store(self._ask, queue, to, layout, replays, token)
            if replays:
                names = [(each.id, each.died_ms) for each in replays.values()]
                call = self._ask(
                    lambda stores: stores.of(queue).dead_letters.delete_call(queue, names, token)
                )
        elif replays:
            found = [*replays.values()]
            call = self._ask(
                lambda stores: stores.of(queue).dead_letters.replay_call(
                    queue, to, layout, found, token
                )
            )
        return Change(dead_letters, call, [*replays], known=known)

    def purge(self, dead_letter: DeadLetter | str) -> Outcome:
        """Delete a dead letter. A chord that waits for its task fails.

        Returns
        -------
        Outcome
            ``DONE``; ``UNKNOWN`` if the dead letter does not exist any more; ``CHANGED`` if another
            dead letter has its id now.
        """
        found = self._dead_letter(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        return self._make_change(found.queue, self._purge_change(found.queue, [found]))

    def purge_all(
        self,
        filter: DeadFilter,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Delete all dead letters that match a filter; parameters as for :meth:`replay_all`."""
        return self._change_all(filter, self._purge_change, dry_run, everything, progress)

    def _purge_change(self, queue: str, dead_letters: Sequence[DeadLetter], _: int = 0) -> Any:
        """Return the change that deletes dead letters of one queue."""
        names = [(each.id, each.dead_lettered.died_ms) for each in dead_letters]
        token = uuid4().hex
        call = self._ask(
            lambda stores: stores.of(queue).dead_letters.delete_call(queue, names, token)
        )

        def after(gone: Sequence[DeadLetter]) -> None:
            note_purged(self._session.app, gone)

        return Change(dead_letters, call, range(len(dead_letters)), after)

    def _dead_letter(self, dead_letter: DeadLetter | str) -> DeadLetter | None:
        return dead_letter if isinstance(dead_letter, DeadLetter) else self.get(dead_letter)

    def _make_change(self, queue: str, change: Any) -> Outcome:
        """Make a change of one dead letter of a queue."""
        call = change.call
        reply = None if call is None else self._ask(lambda stores: stores.of(queue).run(call))
        return OUTCOMES[change.status_codes(reply)[0]]

    def _change_all(
        self,
        filter: DeadFilter,
        change: Callable[[str, Sequence[DeadLetter], int], Any],
        dry_run: bool,
        everything: bool,
        progress: Callable[[Bulk], object] | None,
        *,
        replay_in_place: bool = False,
    ) -> Bulk:
        """Change the dead letters that match, in batches; messages that die meanwhile stay.

        With *replay_in_place* scripts change most messages themselves, and *change* gets only the
        dead letters that :meth:`_replay_in_place` yields.
        """
        check_bulk(filter, dry_run, everything)
        bulk = Bulk(dry_run)
        if dry_run:
            bulk.total = bulk.outcomes[Outcome.DONE] = self.count(filter)
            return bulk
        if filter.died_to is None:
            # A task that is replayed and dies again must not be replayed again by this call.
            filter = replace(filter, died_to=moment(self._session.now_ms()))
        bulk.total = self.count(
            DeadFilter(filter.queue, died_from=filter.died_from, died_to=filter.died_to)
        )
        number_read = 0

        def settle(made: Change, reply: Any) -> None:
            bulk.outcomes.update(OUTCOMES[state] for state in made.status_codes(reply))
            if progress is not None:
                progress(bulk)

        if replay_in_place and filter.is_by_place:
            dead_letters = self._replay_in_place(filter, bulk, progress)
        else:
            dead_letters = self._iterate(filter, ahead=True)
        with PipelinedCalls(self._ask) as ahead:
            for batch in portions(
                dead_letters, CHANGE_BATCH, lambda dead_letter: len(dead_letter.dead_lettered.data)
            ):
                for queue, part in groupby(sorted(batch, key=_QUEUE), _QUEUE):
                    found = [*part]
                    made = change(queue, found, number_read)
                    number_read += len(found)
                    if made.call is None:
                        settle(made, None)
                    else:
                        ahead.send(queue, made.call, partial(settle, made))
        return bulk

    def _replay_in_place(
        self, filter: DeadFilter, bulk: Bulk, progress: Callable[[Bulk], object] | None
    ) -> Iterator[DeadLetter]:
        """Replay dead letters by queue and time; yield those that no script can change."""
        low, high = filter.range_ms()
        layouts = self._ask(lambda stores: queues_of(stores, filter.queue))
        counts = self._ask(lambda stores: counts_of(stores, filter.queue, low, high))
        for queue, layout in layouts.items():
            if not counts.get(queue):
                continue
            first: float | str = "-inf" if low is None else low
            last: float | str = "+inf" if high is None else high
            after = b""
            more = True
            while more:
                place = (layout, first, last, after, uuid4().hex)
                found, remaining = self._ask(partial(_replay_page_in_place, queue, place))
                if found.done:
                    bulk.outcomes[Outcome.DONE] += found.done
                    if progress is not None:
                        progress(bulk)
                for record in remaining:
                    yield DeadLetter.of(queue, record)
                if found.last != first:
                    after = b""
                for id, died in found.left:
                    after = id if died == found.last else after
                first, more = found.last, found.more


def due_of(eta: datetime | str | None, countdown: float | None) -> Due:
    """Return the due time of a replay; raises InvalidETA for an invalid time, or for two times."""
    if eta is not None and countdown is not None:
        raise InvalidETA(f"eta={eta!r}, countdown={countdown!r}: give one of them")
    if eta is not None:
        return due_of_eta(eta)
    return Due(0) if countdown is None else due_of_countdown(countdown)


def check_rate(rate: float | None) -> None:
    """Raise ConfigError if the rate is invalid."""
    if rate is not None and not is_finite(rate, 0.001, 1e6):
        raise ConfigError(f"rate={rate!r}: expected dead letters a second, 0.001 to 1,000,000")


def check_bulk(filter: DeadFilter, dry_run: bool, everything: bool) -> None:
    """Raise ConfigError if a filter matches everything and *everything* is not set."""
    check_filter(filter)
    if filter.is_everything and not (everything or dry_run):
        raise ConfigError(
            "the filter leaves nothing out: give everything=True if all dead letters of all "
            "queues are meant"
        )


def _replay_page_in_place(
    queue: str, place: tuple[Any, ...], stores: Stores
) -> tuple[ReplayedInPlace, Sequence[DeadLetterRecord]]:
    """Replay a page in one call; return its result, and the dead letters that it did not replay."""
    dead_letters = stores.of(queue).dead_letters
    found = dead_letters.replay_in_place(queue, *place)
    return found, dead_letters.read(queue, [id for id, _ in found.left]) if found.left else []
