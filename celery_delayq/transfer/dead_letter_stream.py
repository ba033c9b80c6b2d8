"""Archive, export and import of RabbitMQ's dead letters, which are in a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from celery_delayq.deadletters.reading import DeadLetterSearch
from celery_delayq.deadletters.stream import StreamDeadLetters, offsets_of
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.store.session import Session
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.results import Imported


class StreamPlan:
    """The dead letters to read in a stream of RabbitMQ."""

    def __init__(self, session: Session, filter: DeadFilter) -> None:
        self.session, self.search = session, DeadLetterSearch(session, filter)
        self._by_place = filter.by_place
        with session.app.connection_for_write() as connection:
            self.server: str = connection.as_uri()

    def count(self) -> int:
        """Return the number of dead letters to read."""
        return StreamDeadLetters(self.session).count(self._by_place)

    def read(self) -> Iterator[Iterator[DeadLetter]]:
        """Yield the dead letters of the queues and the time together."""
        yield StreamDeadLetters(self.session)(self._by_place)

    def delete(self, rows: Sequence[DeadLetterRow]) -> list[DeadLetterRow]:
        """Mark dead letters as deleted. Other processes may do this at the same time."""
        offsets = offsets_of(row.dead_letter for row in rows)
        self.session.dead_letter_connection.ask(lambda stream: stream.settle(offsets))
        return [*rows]


class StreamRestore:
    """Restores dead letters into a stream of RabbitMQ. Two parallel runs may restore them twice."""

    def __init__(self, session: Session) -> None:
        self._connection = session.dead_letter_connection
        self._known = {
            (found.queue, sha256(found.dead_lettered.data).digest())
            for found in self._connection.read()
        }

    def __call__(self, rows: Sequence[DeadLetterRow], report: Imported) -> None:
        """Restore a batch and count the outcomes in the report. A dry run only predicts them."""
        new = []
        for row in rows:
            name = row.queue, sha256(row.data).digest()
            report.outcomes["duplicate" if name in self._known else "restored"] += 1
            if name not in self._known:
                new.append((row.queue, row.id, row.data))
                self._known.add(name)
        if new and not report.dry_run:
            self._connection.ask(lambda stream: stream.restore(new))
