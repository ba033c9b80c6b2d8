"""The findings of the doctor. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

#: Tasks are lost or do not run; something is at risk; the check could not be made.
FAULT, WARNING, UNKNOWN = "fault", "warning", "cannot tell"


class Problem(NamedTuple):
    """A problem that a check has found, and what to do.

    *level* is `FAULT`, `WARNING` or `UNKNOWN`.
    """

    level: str
    what: str
    todo: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, with the name of the check that found it."""

    check: str
    level: str
    what: str
    todo: str


@dataclass(slots=True)
class Diagnosis:
    """The checks that were made, and their findings.

    *versions* has the versions of programs and packages by name.
    """

    versions: dict[str, str] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def wrong(self) -> Sequence[Finding]:
        """The findings of the levels `FAULT` and `WARNING`."""
        return [each for each in self.findings if each.level != UNKNOWN]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {**asdict(self), "healthy": not self.wrong}
