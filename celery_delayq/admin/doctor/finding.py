"""The findings of the doctor. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from celery_delayq.utils.doc_pages import with_addresses

FAULT, WARNING, UNKNOWN, NOTE = "fault", "warning", "cannot tell", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and what to do.

    Attributes
    ----------
    check : str
        The name of the check that found it.
    level : str
        `FAULT`: tasks are lost or do not run. `WARNING`: something is at risk. `UNKNOWN`: the check
        could not be made. `NOTE`: people have set this on purpose.
    """

    check: str = field(default="", kw_only=True)
    level: str
    what: str
    todo: str


#: Functions that make a finding of each level. They take the problem, and what to do.
fault, warning, unknown, note = (
    partial(Finding, level) for level in (FAULT, WARNING, UNKNOWN, NOTE)
)


@dataclass(slots=True)
class Diagnosis:
    """The checks that were made, and their findings.

    *versions* has the versions of programs and packages by name.
    """

    versions: dict[str, str] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, check: str, findings: Iterable[Finding]) -> None:
        """Add the findings of a check, each as soon as it is made."""
        for each in findings:
            what, todo = with_addresses(each.what), with_addresses(each.todo)
            self.findings.append(replace(each, check=check, what=what, todo=todo))

    @property
    def wrong(self) -> Sequence[Finding]:
        """The findings of the levels `FAULT` and `WARNING`."""
        return [each for each in self.findings if each.level in (FAULT, WARNING)]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {**asdict(self), "healthy": not self.wrong}
