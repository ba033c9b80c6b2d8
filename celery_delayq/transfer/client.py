"""Public API of export, import and archives. Called as ``delayq.transfer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter
from celery_delayq.store.session import Session
from celery_delayq.transfer import dead_letter_archive, dead_letter_restore, schedule
from celery_delayq.transfer.export_format import FileOrUrl
from celery_delayq.transfer.results import Archived, Exported, Imported


class Transfer:
    """Moves the schedule and dead letters to files and databases, and back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def export_to(
        self,
        target: FileOrUrl,
        filter: Filter | None = None,
        *,
        prune: bool = False,
        progress: Callable[[Exported], object] | None = None,
    ) -> Exported:
        """Write the schedule to a file or a database.

        Parameters and errors: :func:`.transfer.schedule.export_to`.
        """
        return schedule.export_to(self._session, target, filter, prune=prune, progress=progress)

    def import_from(
        self,
        source: FileOrUrl,
        filter: Filter | None = None,
        *,
        overdue: Literal["run", "skip"] = "run",
        dry_run: bool = False,
        progress: Callable[[Imported], object] | None = None,
    ) -> Imported:
        """Schedule exported entries.

        Parameters and errors: :func:`.transfer.schedule.import_from`.
        """
        return schedule.import_from(
            self._session, source, filter, overdue=overdue, dry_run=dry_run, progress=progress
        )

    def archive_dead(
        self,
        url: str | None = None,
        filter: DeadFilter | None = None,
        *,
        older_than: float = 0.0,
        progress: Callable[[Archived], object] | None = None,
    ) -> Archived:
        """Move dead letters to a database.

        Parameters and errors: :func:`.dead_letter_archive.archive_to`.
        """
        return dead_letter_archive.archive_to(
            self._session, url, filter, older_than=older_than, progress=progress
        )

    def export_dead(
        self,
        target: FileOrUrl,
        filter: DeadFilter | None = None,
        *,
        progress: Callable[[Archived], object] | None = None,
    ) -> Archived:
        """Copy dead letters to a file or a database.

        Parameters and errors: :func:`.dead_letter_archive.export_dead_letters`.
        """
        return dead_letter_archive.export_dead_letters(
            self._session, target, filter, progress=progress
        )

    def import_dead(
        self,
        source: FileOrUrl | None = None,
        filter: DeadFilter | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Imported], object] | None = None,
    ) -> Imported:
        """Put exported or archived dead letters back.

        Parameters and errors: :func:`.dead_letter_restore.restore_from`.
        """
        return dead_letter_restore.restore_from(
            self._session, source, filter, dry_run=dry_run, progress=progress
        )
