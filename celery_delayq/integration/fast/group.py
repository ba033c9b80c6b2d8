"""A group of changes that serve speed alone."""

from __future__ import annotations

from dataclasses import dataclass

from celery_delayq.integration.replace import Change


@dataclass(frozen=True, kw_only=True)
class Group:
    """Changes that are measured, switched off and removed together.

    Parameters
    ----------
    name : str
        The name of the group's module; the benchmark has a row ``fast-<name>``.
    process : tuple[Change, ...]
        Made by ``DelayQ(app)`` for all apps of the process: these changes make sending faster.
    worker : tuple[Change, ...]
        Made when a worker starts: these changes make running tasks faster.
    upstream : str
        The change to Celery, kombu or billiard that would replace this group.
    """

    name: str
    process: tuple[Change, ...] = ()
    worker: tuple[Change, ...] = ()
    upstream: str

    @property
    def row(self) -> str:
        """The name of the benchmark row."""
        return f"fast-{self.name}"
