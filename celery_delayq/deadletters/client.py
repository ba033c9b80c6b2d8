"""What those call who manage dead letters: list, replay, purge."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import uuid4

from celery_delayq.deadletters.replay import Changes, replayed_in_place
from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter, RecordError
from celery_delayq.integration.not_run import tell_chords_of_dead
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter, DeadLettered
from celery_delayq.model.envelope import Due, due_of_countdown, due_of_eta
from celery_delayq.model.lookup import StatusCode
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Outcome, moment
from celery_delayq.store.dead_letters import Replay, ReplayedInPlace, told
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.pipelining import Ahead
from celery_delayq.store.session import Session
from celery_delayq.utils.portions import portions

if TYPE_CHECKING:
    pass

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Change(NamedTuple):
    """A change of dead letters that is still to be made: the call, and which of them it is
    about."""

    dead_letters: Sequence[DeadLetter]
    call: Call | None
    places: Sequence[int]
    after: Callable[[Sequence[DeadLetter]], None] | None = None

    def states(self, reply: Any) -> Sequence[StatusCode]:
        """Return what became of each dead letter by the reply."""
        states: list[StatusCode] = ["x"] * len(self.dead_letters)
        for place, state in zip(self.places, told(reply or b""), strict=True):
            states[place] = state
        if self.after is not None:
            done = zip(self.dead_letters, states, strict=True)
            self.after([dead_letter for dead_letter, state in done if state == "d"])
        return states


#: Dead letters that one script call changes.
BATCH = 100


class DeadLetters:
    """Dead letters: list, replay, purge. Called as ``delayq.dead_letters``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask = session.ask

    # -- to look at

    def __call__(
        self,
        filter: DeadFilter | None = None,
        *,
        queue: str | None = None,
        task: str | None = None,
        task_id: str | None = None,
        reason: str | None = None,
        exception: str | None = None,
        died_from: datetime | str | None = None,
        died_to: datetime | str | None = None,
        root_id: str | None = None,
        group_id: str | None = None,
    ) -> Iterator[DeadLetter]:
        """Return an iterator over dead letters, the first that died first.

        Dead letters that come or go meanwhile are in it or not; all others are there once.

        Parameters
        ----------
        filter : DeadFilter | None
            Which; or its fields by name, see :class:`~celery_delayq.model.dead_letter.DeadFilter`.

        Raises
        ------
        InvalidFilter, InvalidETA
            The filter is none.
        """
        fields = {
            "queue": queue,
            "task": task,
            "task_id": task_id,
            "reason": reason,
            "exception": exception,
            "died_from": died_from,
            "died_to": died_to,
            "root_id": root_id,
            "group_id": group_id,
        }
        return self._dead(_filter_of(filter, fields))

    def _dead(self, filter: DeadFilter, *, ahead: bool = False) -> Iterator[DeadLetter]:
        """Return an iterator; with *ahead* one that has a connection for itself, where all dead
        letters are of one queue.
        """
        low, high = filter.range_ms()
        all_match = filter.is_by_place

        def with_dead_letters(store: Store) -> list[str]:
            known = queues_of(store, filter.queue)
            return [queue for queue in known if store.dead_letters.count(queue, low, high)]

        queues = self._ask(with_dead_letters)
        ahead = ahead and len(queues) == 1

        def of_queue(queue: str) -> Iterator[DeadLetter]:
            dead_letters = self._ask(lambda store: store.dead_letters)
            for dead_lettered in dead_letters.all(queue, low, high, ahead=ahead, ask=self._ask):
                dead_letter = DeadLetter.of(queue, dead_lettered)
                if all_match or filter.matches(dead_letter):
                    yield dead_letter

        return heapq.merge(
            *map(of_queue, queues), key=lambda dead_letter: dead_letter.dead_lettered.died_ms
        )

    def get(self, id: str, *, queue: str | None = None) -> DeadLetter | None:
        """Return the dead letter with that id, or else the first one of a task with that id.

        Their ids differ where several dead letters of a task died, or where nobody knew the id:
        then all dead letters are read. None where there is none.
        """
        if not isinstance(id, str):
            raise InvalidFilter(f"id={id!r}: expected the id of a dead letter")

        def ask(store: Store) -> DeadLetter | None:
            for name in queues_of(store, queue):
                dead_lettered = store.dead_letters.get(name, id)
                if dead_lettered is not None:
                    return DeadLetter.of(name, dead_lettered)
            return None

        return self._ask(ask) or next(self._dead(DeadFilter(queue, task_id=id)), None)

    def count(self, /, filter: DeadFilter | None = None, **fields: Any) -> int:
        """Return how many dead letters a filter means, or its *fields* as for
        ``delayq.dead_letters(…)``; all of them are read unless it is by queue and time alone.
        """
        filter = _filter_of(filter, fields)
        if not filter.is_by_place:
            return sum(1 for _ in self._dead(filter))
        low, high = filter.range_ms()
        return self._ask(
            lambda store: sum(
                store.dead_letters.count(queue, low, high)
                for queue in queues_of(store, filter.queue)
            )
        )

    # -- to replay

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
        """Run a dead letter's task again, with all its attempts: in one step it is dead no more.

        Parameters
        ----------
        dead_letter : DeadLetter | str
            A dead letter or its id.
        args, kwargs, queue
            What to change; its retries have that too.
        eta, countdown
            When it is to run; at once without either.

        Returns
        -------
        Outcome
            ``DONE``; ``UNKNOWN``, when there is no such dead letter any more; ``CHANGED``, when
            another one has its id by now; ``CONFLICT``, when another task has its unique key;
            ``UNREADABLE``, when it is no message of a task.
        """
        found = self._dead_letter(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        if eta is not None and countdown is not None:
            raise InvalidETA(f"eta={eta!r}, countdown={countdown!r}: give one of them")
        due = Due(0)
        if eta is not None:
            due = due_of_eta(eta)
        elif countdown is not None:
            due = due_of_countdown(countdown)
        changes = Changes(args, kwargs, queue).checked()
        return self._make(self._to_replay(found.queue, [found], changes, [due], uuid4().hex))

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
        """Run again all that a filter means, of each queue the first that died first.

        Parameters
        ----------
        rate : float | None
            So many a second: they are scheduled one after the other, and this returns at once.
        args, kwargs, queue
            What to change, as for :meth:`replay`.
        dry_run : bool
            Only count them.
        everything : bool
            Needed for a filter that leaves nothing out.
        progress : Callable[[Bulk], object]
            Called after each batch.
        """
        if rate is not None and not (
            isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0.001 <= rate <= 1e6
        ):
            raise ConfigError(f"rate={rate!r}: expected dead letters a second, 0.001 to 1,000,000")
        changes = Changes(args, kwargs, queue).checked()
        start, run = self._ask(lambda store: store.now_ms()), uuid4().hex

        def change(name: str, dead_letters: Sequence[DeadLetter], before: int) -> _Change:
            dues = [
                Due(0) if rate is None else Due(start + int((before + n) * 1000 / rate))
                for n in range(len(dead_letters))
            ]
            return self._to_replay(name, dead_letters, changes, dues, run)

        plain = rate is None and changes == Changes()
        return self._change_dead(
            filter, change, dry_run, everything, progress, replay_in_place=plain
        )

    def _to_replay(
        self,
        queue: str,
        dead_letters: Sequence[DeadLetter],
        changes: Changes,
        dues: Sequence[Due],
        run: str,
    ) -> _Change:
        """Return what replays dead letters of one queue; all go to one queue."""
        to, token = changes.queue or queue, uuid4().hex
        layout = self._ask(lambda store: queues_of(store, to)[to])
        replays: dict[int, Replay] = {}
        for place, (dead_letter, due) in enumerate(zip(dead_letters, dues, strict=True)):
            # The first half of a message id tells messages apart.
            message_id = f"{place:04x}{token[4:]}"
            try:
                entry = replayed_in_place(dead_letter, layout, due, changes, message_id, run)
            except (RecordError, ValueError, TypeError, LookupError, AttributeError) as exc:
                # A stranger's message may be anything.
                logger.warning("Dead letter %r is not replayed: %r", dead_letter.id, exc)
                continue
            # What has its unique key by now stays.
            if entry.policy:
                entry = entry._replace(policy="e 0 0")
            replays[place] = Replay(
                dead_letter.dead_lettered.id, dead_letter.dead_lettered.died_ms, entry
            )
        call = None
        if replays:
            found = [*replays.values()]
            call = self._ask(
                lambda store: store.dead_letters.replay_call(queue, to, layout, found, token)
            )
        return _Change(dead_letters, call, [*replays])

    # -- to purge

    def purge(self, dead_letter: DeadLetter | str) -> Outcome:
        """Forget a dead letter; a chord that waits for it fails."""
        found = self._dead_letter(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        return self._make(self._to_purge(found.queue, [found]))

    def purge_all(
        self,
        filter: DeadFilter,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Forget all that a filter means; the others as for :meth:`replay_all`."""

        def change(name: str, dead_letters: Sequence[DeadLetter], _: int) -> _Change:
            return self._to_purge(name, dead_letters)

        return self._change_dead(filter, change, dry_run, everything, progress)

    def _to_purge(self, queue: str, dead_letters: Sequence[DeadLetter]) -> _Change:
        """Return what forgets dead letters of one queue."""
        names = [(each.id, each.dead_lettered.died_ms) for each in dead_letters]
        token = uuid4().hex
        call = self._ask(lambda store: store.dead_letters.discard_call(queue, names, token))

        def after(gone: Sequence[DeadLetter]) -> None:
            tell_chords_of_dead(self._session.app, gone)

        return _Change(dead_letters, call, range(len(dead_letters)), after)

    # -- how

    def _dead_letter(self, dead_letter: DeadLetter | str) -> DeadLetter | None:
        return dead_letter if isinstance(dead_letter, DeadLetter) else self.get(dead_letter)

    def _make(self, change: _Change) -> Outcome:
        """Make a change of one dead letter."""
        call = change.call
        reply = None if call is None else self._ask(lambda store: store.run(call))
        return OUTCOMES[change.states(reply)[0]]

    def _change_dead(
        self,
        filter: DeadFilter,
        change: Callable[[str, Sequence[DeadLetter], int], _Change],
        dry_run: bool,
        everything: bool,
        progress: Callable[[Bulk], object] | None,
        *,
        replay_in_place: bool = False,
    ) -> Bulk:
        """Change what is meant, in batches; what dies meanwhile is left alone.

        With *replay_in_place* only what :meth:`_replayed_in_place` leaves.
        """
        _check_filter(filter)
        if filter.is_everything and not (everything or dry_run):
            raise ConfigError(
                "the filter leaves nothing out: give everything=True if all dead letters of all "
                "queues are meant"
            )
        bulk = Bulk(dry_run)
        if dry_run:
            bulk.total = bulk.outcomes[Outcome.DONE] = self.count(filter)
            return bulk
        if filter.died_to is None:
            # Else what is replayed and dies at once would be met again and again.
            filter = replace(filter, died_to=moment(self._ask(lambda store: store.now_ms())))
        bulk.total = self.count(
            DeadFilter(filter.queue, died_from=filter.died_from, died_to=filter.died_to)
        )
        looked = 0

        def settle(made: _Change, reply: Any) -> None:
            bulk.outcomes.update(OUTCOMES[state] for state in made.states(reply))
            if progress is not None:
                progress(bulk)

        if replay_in_place and filter.is_by_place:
            dead_letters = self._replayed_in_place(filter, bulk, progress)
        else:
            dead_letters = self._dead(filter, ahead=True)
        with Ahead(self._ask) as ahead:
            for batch in portions(
                dead_letters, BATCH, lambda dead_letter: len(dead_letter.dead_lettered.data)
            ):
                for queue, part in groupby(sorted(batch, key=_queue_of), _queue_of):
                    found = [*part]
                    made = change(queue, found, looked)
                    looked += len(found)
                    if made.call is None:
                        settle(made, None)
                    else:
                        ahead.send(made.call, partial(settle, made))
        return bulk

    def _replayed_in_place(
        self, filter: DeadFilter, bulk: Bulk, progress: Callable[[Bulk], object] | None
    ) -> Iterator[DeadLetter]:
        """Run again what a filter by place means, and yield those that have to be read for that."""
        low, high = filter.range_ms()
        for queue, layout in self._ask(lambda store: queues_of(store, filter.queue)).items():
            first: float | str = "-inf" if low is None else low
            last: float | str = "+inf" if high is None else high
            told: list[bytes] = []
            more = True
            while more:
                ask = partial(_replay_in_place, queue, layout, first, last, told, uuid4().hex)
                found, left = self._ask(ask)
                if found.done:
                    bulk.outcomes[Outcome.DONE] += found.done
                    if progress is not None:
                        progress(bulk)
                for dead_lettered in left:
                    yield DeadLetter.of(queue, dead_lettered)
                told = told if found.last == first else []
                told += [id for id, died in found.left if died == found.last]
                first, more = found.last, found.more


def _replay_in_place(
    queue: str,
    layout: Layout,
    died_from: float | str,
    died_to: float | str,
    told: Sequence[bytes],
    token: str,
    store: Store,
) -> tuple[ReplayedInPlace, Sequence[DeadLettered]]:
    """Return what became of some dead letters, and those that are left."""
    found = store.dead_letters.replay_in_place(queue, layout, died_from, died_to, told, token)
    return found, store.dead_letters.read(queue, [id for id, _ in found.left]) if found.left else []


def _filter_of(filter: DeadFilter | None, fields: Mapping[str, Any]) -> DeadFilter:
    """Return a filter, or one of the fields that are given."""
    given = {name: value for name, value in fields.items() if value is not None}
    if filter is not None and given:
        raise InvalidFilter(f"filter={filter!r} and {', '.join(given)}: give one of them")
    return DeadFilter(**given) if filter is None else _check_filter(filter)


def _check_filter(filter: DeadFilter) -> DeadFilter:
    if not isinstance(filter, DeadFilter):
        raise InvalidFilter(f"filter={filter!r}: expected a DeadFilter(…)")
    return filter


def _queue_of(dead_letter: DeadLetter) -> str:
    return dead_letter.queue
