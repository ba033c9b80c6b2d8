"""Read exports of the schedule and of dead letters, whichever there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.names import NO_RENAMES
from celery_delayq.model.scheduled import Filter
from celery_delayq.transfer import jsonl
from celery_delayq.transfer.dead_letter_row import DEAD_LETTERS
from celery_delayq.transfer.export_format import FileOrUrl, ParsedLines, is_url
from celery_delayq.transfer.results import sqlalchemy_needed
from celery_delayq.transfer.schedule_row import SCHEDULE


@contextmanager
def reading(source: FileOrUrl) -> Iterator[ParsedLines]:
    """Open a file, which may have exports of both kinds, or a database with one table or both."""
    if not is_url(source):
        with jsonl.reading(source, SCHEDULE, DEAD_LETTERS) as lines:
            yield lines
        return
    with sqlalchemy_needed():
        from celery_delayq.transfer import dead_letter_sql, schedule_sql
        from celery_delayq.utils.sql import Database
    database = Database.of(source)
    has_dead_letters = database.has_table(dead_letter_sql.dead_letters)
    with ExitStack() as stack:
        lines = iter(())
        if not has_dead_letters or database.has_table(schedule_sql.entries):
            lines = stack.enter_context(schedule_sql.reading(source, Filter(), NO_RENAMES))
        if has_dead_letters:
            table = stack.enter_context(dead_letter_sql.reading(database))
            lines = chain(lines, table.lines(DeadFilter(), NO_RENAMES))
        yield lines
