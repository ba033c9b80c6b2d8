"""Changing dead letters in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import uuid4

from celery_delayq.deadletters.reader import DeadLetterReader, check_filter
from celery_delayq.errors import ConfigError
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter, DeadLettered
from celery_delayq.model.lookup import StatusCode
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Outcome, moment
from celery_delayq.store.dead_letters import ReplayedInPlace, told
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.pipelining import PipelinedCalls
from celery_delayq.utils.portions import portions


class Change(NamedTuple):
    """A change of dead letters that is to be made; *places* are the dead letters in its call."""

    dead_letters: Sequence[DeadLetter]
    call: Call | None
    places: Sequence[int]
    after: Callable[[Sequence[DeadLetter]], None] | None = None

    def states(self, reply: Any) -> Sequence[StatusCode]:
        """Return the status code of each dead letter from the reply."""
        states: list[StatusCode] = ["x"] * len(self.dead_letters)
        for place, state in zip(self.places, told(reply or b""), strict=True):
            states[place] = state
        if self.after is not None:
            done = zip(self.dead_letters, states, strict=True)
            self.after([dead_letter for dead_letter, state in done if state == "d"])
        return states


#: Dead letters that one script call changes.
BATCH = 100

_QUEUE: Callable[[DeadLetter], str] = attrgetter("queue")


class DeadLetterChanges(DeadLetterReader):
    """The part of ``delayq.dead_letters`` that makes changes."""

    def _dead_letter(self, dead_letter: DeadLetter | str) -> DeadLetter | None:
        return dead_letter if isinstance(dead_letter, DeadLetter) else self.get(dead_letter)

    def _make(self, change: Change) -> Outcome:
        """Make a change of one dead letter."""
        call = change.call
        reply = None if call is None else self._ask(lambda store: store.run(call))
        return OUTCOMES[change.states(reply)[0]]

    def _change_dead(
        self,
        filter: DeadFilter,
        change: Callable[[str, Sequence[DeadLetter], int], Change],
        dry_run: bool,
        everything: bool,
        progress: Callable[[Bulk], object] | None,
        *,
        replay_in_place: bool = False,
    ) -> Bulk:
        """Change the dead letters that match, in batches; those that die meanwhile stay.

        With *replay_in_place* the scripts change most messages themselves, and *change* gets only
        the dead letters that :meth:`_replayed_in_place` yields.
        """
        check_bulk(filter, dry_run, everything)
        bulk = Bulk(dry_run)
        if dry_run:
            bulk.total = bulk.outcomes[Outcome.DONE] = self.count(filter)
            return bulk
        if filter.died_to is None:
            # Otherwise a task that is replayed and dies at once would be replayed again and again.
            filter = replace(filter, died_to=moment(self._ask(lambda store: store.now_ms())))
        bulk.total = self.count(
            DeadFilter(filter.queue, died_from=filter.died_from, died_to=filter.died_to)
        )
        looked = 0

        def settle(made: Change, reply: Any) -> None:
            bulk.outcomes.update(OUTCOMES[state] for state in made.states(reply))
            if progress is not None:
                progress(bulk)

        if replay_in_place and filter.is_by_place:
            dead_letters = self._replayed_in_place(filter, bulk, progress)
        else:
            dead_letters = self._dead(filter, ahead=True)
        with PipelinedCalls(self._ask) as ahead:
            for batch in portions(
                dead_letters, BATCH, lambda dead_letter: len(dead_letter.dead_lettered.data)
            ):
                for queue, part in groupby(sorted(batch, key=_QUEUE), _QUEUE):
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
        """Replay dead letters by queue and time; yield those that a script cannot change."""
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


def check_bulk(filter: DeadFilter, dry_run: bool, everything: bool) -> None:
    """Raise ConfigError if a filter leaves nothing out by mistake."""
    check_filter(filter)
    if filter.is_everything and not (everything or dry_run):
        raise ConfigError(
            "the filter leaves nothing out: give everything=True if all dead letters of all "
            "queues are meant"
        )


def _replay_in_place(
    queue: str,
    layout: Layout,
    died_from: float | str,
    died_to: float | str,
    told: Sequence[bytes],
    token: str,
    store: Store,
) -> tuple[ReplayedInPlace, Sequence[DeadLettered]]:
    """Return the result of one call, and the dead letters that it left."""
    found = store.dead_letters.replay_in_place(queue, layout, died_from, died_to, told, token)
    return found, store.dead_letters.read(queue, [id for id, _ in found.left]) if found.left else []
