"""Public API of export, import and archives: ``delayq.transfer``."""

from __future__ import annotations

from celery_delayq.store.session import Session
from celery_delayq.transfer import dead_letter_archive, dead_letter_restore, schedule
from celery_delayq.utils.delegation import method_of


class Transfer:
    """Moves the schedule and dead letters to files and databases, and back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    export_to = method_of("_session", schedule.export_to)
    import_from = method_of("_session", schedule.import_from)
    archive_dead = method_of("_session", dead_letter_archive.archive_dead)
    export_dead = method_of("_session", dead_letter_archive.export_dead)
    import_dead = method_of("_session", dead_letter_restore.import_dead)
