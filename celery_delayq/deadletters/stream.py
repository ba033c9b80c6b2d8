"""The public dead-letter API on RabbitMQ, where dead letters lie in a stream."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from celery_delayq.deadletters.client import check_bulk, check_rate, due_of
from celery_delayq.deadletters.reader import DeadLetterReader
from celery_delayq.deadletters.replay import ReplayChanges, replayed_message
from celery_delayq.errors import RecordError
from celery_delayq.integration.not_run import tell_chords_of_dead
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.envelope import Due
from celery_delayq.model.scheduled import Bulk, Outcome, moment
from celery_delayq.transport.amqp.messages import from_envelope
from celery_delayq.utils.portions import portions

logger = logging.getLogger(__name__)

#: Dead letters that are settled by one mark.
BATCH = 100


@dataclass(frozen=True)
class StreamedDeadLetter(DeadLetter):
    """A dead letter, and its place in the stream."""

    offset: int = -1


class StreamDeadLetters(DeadLetterReader):
    """Dead letters on RabbitMQ: list, replay, purge. Called as ``delayq.dead_letters``.

    A replay publishes, waits for the broker's confirm, and then marks the dead letter as replayed.
    So two replays at the same time run a task twice.
    """

    def _dead(
        self,
        filter: DeadFilter,
        *,
        ahead: bool = False,  # noqa: ARG002
        offset: int | None = None,
    ) -> Iterator[DeadLetter]:
        low, high = filter.range_ms()
        for found in self._connection.read(offset):
            died = found.dead_lettered.died_ms
            if (
                filter.queue not in (None, found.queue)
                or (low is not None and died < low)
                or (high is not None and died > high)
            ):
                continue
            plain = DeadLetter.of(found.queue, found.dead_lettered)
            if filter.matches(plain):
                yield StreamedDeadLetter(
                    plain.id, plain.queue, plain.reason, plain.dead_lettered, found.offset
                )

    @property
    def _connection(self) -> Any:
        return self._session.dead_letter_connection

    def _by_id(self, id: str, queue: str | None) -> DeadLetter | None:
        return next((each for each in self._dead(DeadFilter(queue)) if each.id == id), None)

    def _count(self, filter: DeadFilter) -> int:
        return sum(1 for _ in self._dead(filter))

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
        """Run a dead letter's task again; parameters, outcomes and errors as on Redis."""
        found = self._found(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        due = due_of(eta, countdown)
        changes = ReplayChanges(args, kwargs, queue).checked()
        [outcome] = self._replay([(found, due)], changes, uuid4().hex)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

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
        """Replay all dead letters that match a filter; parameters and errors as on Redis."""
        check_rate(rate)
        changes = ReplayChanges(args, kwargs, queue).checked()
        start, run = int(time.time() * 1000), uuid4().hex

        def change(found: Sequence[DeadLetter], before: int) -> Iterable[Outcome]:
            dues = (
                Due(0) if rate is None else Due(start + int((before + n) * 1000 / rate))
                for n in range(len(found))
            )
            outcomes = self._replay([*zip(found, dues, strict=True)], changes, run)
            for dead_letter, outcome in zip(found, outcomes, strict=True):
                if isinstance(outcome, Outcome):
                    yield outcome
                else:
                    logger.warning("Dead letter %r is not replayed: %s", dead_letter.id, outcome)
                    yield Outcome.REFUSED

        return self._change_all(filter, change, dry_run, everything, progress)

    def purge(self, dead_letter: DeadLetter | str) -> Outcome:
        """Delete a dead letter; a chord that waits for it fails. Outcomes as on Redis."""
        found = self._found(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        [outcome] = self._purge([found], 0)
        return outcome

    def purge_all(
        self,
        filter: DeadFilter,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Delete all dead letters that match a filter; parameters as on Redis."""
        return self._change_all(filter, self._purge, dry_run, everything, progress)

    def _found(self, dead_letter: DeadLetter | str) -> DeadLetter | None:
        """Return a dead letter as it is in the stream now, None if it is settled."""
        if isinstance(dead_letter, StreamedDeadLetter):
            there = self._dead(DeadFilter(), offset=dead_letter.offset)
            return next((each for each in there if each == dead_letter), None)
        return self.get(dead_letter.id if isinstance(dead_letter, DeadLetter) else dead_letter)

    def _change_all(
        self,
        filter: DeadFilter,
        change: Callable[[Sequence[DeadLetter], int], Iterable[Outcome]],
        dry_run: bool,
        everything: bool,
        progress: Callable[[Bulk], object] | None,
    ) -> Bulk:
        """Change the dead letters that match, in batches; those that die meanwhile stay."""
        check_bulk(filter, dry_run, everything)
        bulk = Bulk(dry_run)
        if filter.died_to is None:
            filter = replace(filter, died_to=moment(int(time.time() * 1000)))
        bulk.total = self._count(filter)
        if dry_run:
            bulk.outcomes[Outcome.DONE] = bulk.total
            return bulk
        looked = 0
        for batch in portions(self._dead(filter), BATCH, lambda each: len(each.dead_lettered.data)):
            bulk.outcomes.update(change(batch, looked))
            looked += len(batch)
            if progress is not None:
                progress(bulk)
        return bulk

    def _replay(
        self, found: Sequence[tuple[DeadLetter, Due]], changes: ReplayChanges, run: str
    ) -> list[Outcome | Exception]:
        """Replay dead letters; return of each its outcome, or why RabbitMQ refused its message."""
        outcomes: list[Outcome | Exception] = [Outcome.DONE] * len(found)
        messages: dict[int, tuple[Any, str, Due]] = {}
        for place, (dead_letter, due) in enumerate(found):
            try:
                message = replayed_message(dead_letter, changes, uuid4().hex, run)
            except (RecordError, ValueError, TypeError, LookupError, AttributeError) as exc:
                logger.warning("Dead letter %r is not replayed: %r", dead_letter.id, exc)
                outcomes[place] = Outcome.UNREADABLE
                continue
            queue = changes.queue or dead_letter.queue
            messages[place] = from_envelope(message), queue, due
        if messages:
            offsets = offsets_of(found[place][0] for place in messages)
            refused = self._connection.send([*messages.values()], offsets)
            for n, error in refused.items():
                outcomes[[*messages][n]] = error
        return outcomes

    def _purge(self, found: Sequence[DeadLetter], _: int) -> list[Outcome]:
        offsets = offsets_of(found)
        self._connection.ask(lambda stream: stream.settle(offsets))
        tell_chords_of_dead(self._session.app, found)
        return [Outcome.DONE] * len(found)


def offsets_of(dead_letters: Iterable[DeadLetter]) -> list[int]:
    """Return the places of dead letters in their stream."""
    return [each.offset for each in dead_letters if isinstance(each, StreamedDeadLetter)]
