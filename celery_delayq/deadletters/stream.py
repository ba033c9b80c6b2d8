"""Public API of dead letters on RabbitMQ, which keeps them in a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from celery_delayq.deadletters.client import DeadLetters, InPlace
from celery_delayq.deadletters.reading import DeadLetterPlaces, DeadLetterSearch, Progress, counted
from celery_delayq.deadletters.replay import ReplayChanges, make_replays, replay_message
from celery_delayq.integration.not_run import note_purged
from celery_delayq.model.dead_letter import (
    DeadFilter,
    DeadLetter,
    DeadLetterCursor,
    is_in_place,
)
from celery_delayq.model.envelope import Due
from celery_delayq.model.scheduled import Bulk, Outcome
from celery_delayq.transport.amqp.messages import from_envelope
from celery_delayq.utils.portions import portions

logger = logging.getLogger(__name__)

#: Dead letters that one mark settles.
MARK_BATCH = 100


@dataclass(frozen=True)
class StreamedDeadLetter(DeadLetter):
    """A dead letter, and its place in the stream."""

    offset: int = -1


class StreamDeadLetters(DeadLetters):
    """Dead letters on RabbitMQ. A change is made at once, and returns the list of its outcomes.

    A replay publishes the message, waits for the broker's confirm, and then marks the dead letter
    as replayed. So two replays at the same time run a task twice.
    """

    def _places(
        self,
        filter: DeadFilter,
        after: DeadLetterCursor,
        *,
        ahead: bool = False,  # noqa: ARG002
        progress: Progress | None = None,
    ) -> DeadLetterPlaces:
        """Read the stream behind the offset of a cursor. Its dead letters have no scores."""
        read = counted(self._connection.read(first=after.offset + 1), progress, None)
        every = map(_streamed, read)
        return DeadLetterPlaces((0.0, each) for each in every if is_in_place(each, filter))

    @property
    def _connection(self) -> Any:
        return self._session.dead_letter_connection

    def _find_by_id(
        self, id: str, queue: str | None, progress: Progress | None
    ) -> DeadLetter | None:
        found = self._iterate(DeadFilter(queue), progress=progress)
        return next((each for each in found if each.id == id), None)

    def _count(self, filter: DeadFilter, search: DeadLetterSearch | None = None) -> int:
        return sum(1 for _ in self._iterate(filter, search=search))

    def _dead_letter(self, dead_letter: DeadLetter | str) -> DeadLetter | None:
        """Return a dead letter as the stream has it now; None if it is settled."""
        if isinstance(dead_letter, StreamedDeadLetter):
            found = map(_streamed, self._connection.read(dead_letter.offset))
            return next((each for each in found if each == dead_letter), None)
        return self.get(dead_letter.id if isinstance(dead_letter, DeadLetter) else dead_letter)

    def _change_matching(
        self,
        filter: DeadFilter,
        search: DeadLetterSearch,
        change: Callable[[str, Sequence[DeadLetter], int], Any],
        bulk: Bulk,
        progress: Callable[[Bulk], object] | None,
        *,
        in_place: InPlace | None,  # noqa: ARG002
    ) -> None:
        number_read = 0
        for batch in portions(
            self._iterate(filter, search=search),
            MARK_BATCH,
            lambda each: len(each.dead_lettered.data),
        ):
            for dead_letter, outcome in zip(batch, change("", batch, number_read), strict=True):
                if isinstance(outcome, Exception):
                    logger.warning("Dead letter %r is not replayed: %s", dead_letter.id, outcome)
                    outcome = Outcome.REFUSED
                bulk.outcomes[outcome] += 1
            number_read += len(batch)
            if progress is not None:
                progress(bulk)

    def _make_change(self, _queue: str, change: Any) -> Outcome:
        [outcome] = change
        if isinstance(outcome, Exception):
            raise outcome
        return cast("Outcome", outcome)

    def _replay_change(
        self,
        _queue: str,
        dead_letters: Sequence[DeadLetter],
        changes: ReplayChanges,
        dues: Sequence[Due],
        run: str,
    ) -> list[Outcome | Exception]:
        """Replay dead letters; return the outcome of each, or RabbitMQ's error for its message."""

        def message(_: int, dead_letter: DeadLetter, due: Due) -> tuple[Any, str, Due]:
            envelope = replay_message(dead_letter, changes, uuid4().hex, run)
            return from_envelope(envelope), changes.queue or dead_letter.queue, due

        messages = make_replays(dead_letters, dues, message)
        outcomes: list[Outcome | Exception] = [Outcome.UNREADABLE] * len(dead_letters)
        if messages:
            offsets = offsets_of(dead_letters[place] for place in messages)
            refused = self._connection.send([*messages.values()], offsets)
            for number, place in enumerate(messages):
                outcomes[place] = refused.get(number, Outcome.DONE)
        return outcomes

    def _purge_change(
        self, _queue: str, dead_letters: Sequence[DeadLetter], _: int = 0
    ) -> list[Outcome]:
        offsets = offsets_of(dead_letters)
        self._connection.ask(lambda stream: stream.settle(offsets))
        note_purged(self._session.app, dead_letters)
        return [Outcome.DONE] * len(dead_letters)


def _streamed(found: Any) -> StreamedDeadLetter:
    """Return the dead letter that the stream has at an offset."""
    plain = DeadLetter.of(found.queue, found.dead_lettered)
    return StreamedDeadLetter(
        plain.id, plain.queue, plain.reason, plain.dead_lettered, found.offset
    )


def offsets_of(dead_letters: Iterable[DeadLetter]) -> list[int]:
    """Return the offsets of dead letters in their stream."""
    return [each.offset for each in dead_letters if isinstance(each, StreamedDeadLetter)]
