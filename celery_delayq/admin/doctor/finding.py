"""What the doctor says. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

#: Tasks are lost or do not run; something is at risk; it could not be looked at.
FAULT, WARNING, UNKNOWN = "fault", "warning", "cannot tell"


class Problem(NamedTuple):
    """What a check has found to be wrong, and what to do.

    *level* is one of `FAULT`, `WARNING` and `UNKNOWN`.
    """

    level: str
    what: str
    todo: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and the name of the check that found it."""

    check: str
    level: str
    what: str
    todo: str


@dataclass(slots=True)
class Diagnosis:
    """What was looked at and found.

    *versions* are those of programs and packages by name.
    """

    versions: dict[str, str] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def wrong(self) -> Sequence[Finding]:
        """The findings that are more than `UNKNOWN`."""
        return [each for each in self.findings if each.level != UNKNOWN]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {**asdict(self), "healthy": not self.wrong}
