"""W3C Trace Context of a task. No I/O.

It travels in the message headers ``traceparent`` and ``tracestate``, where OpenTelemetry's Celery
instrumentation writes and reads them. OpenTelemetry itself is asked only where the app has
imported it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

#: Names of the two headers, by https://www.w3.org/TR/trace-context/.
PARENT, STATE = "traceparent", "tracestate"

#: Most characters and members of a ``tracestate``.
MAX_STATE_CHARACTERS, MAX_STATE_MEMBERS = 512, 32

_IDS = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
# Versions to come may add something at the end.
_PARENT = re.compile(rf"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-[\x21-\x7e]{{0,200}})?")
_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}="
    r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class Trace(NamedTuple):
    """The values of the two headers; *state* may be ``""``."""

    parent: str
    state: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, Any]) -> Trace | None:
        """Read headers of any sender; invalid ones count as missing."""
        parent, state = headers.get(PARENT), headers.get(STATE)
        if not isinstance(parent, str) or not _PARENT.fullmatch(parent):
            return None
        return cls(parent, _checked_state(state))

    def as_headers(self) -> dict[str, str]:
        """Return the headers."""
        return {PARENT: self.parent, STATE: self.state} if self.state else {PARENT: self.parent}


def _checked_state(given: Any) -> str:
    """Return a ``tracestate``, ``""`` if it is invalid."""
    if not isinstance(given, str) or len(given) > MAX_STATE_CHARACTERS:
        return ""
    members = [text for part in given.split(",") if (text := part.strip(" \t"))]
    valid = len(members) <= MAX_STATE_MEMBERS and all(map(_MEMBER.fullmatch, members))
    return ",".join(members) if valid else ""


def of_opentelemetry() -> Trace | None:
    """Return OpenTelemetry's current span, None without one."""
    otel = sys.modules.get("opentelemetry.trace")
    if otel is None:
        return None
    try:
        span = otel.get_current_span().get_span_context()
        if not span.is_valid:
            return None
        parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
        return Trace(parent, span.trace_state.to_header() if span.trace_state else "")
    except Exception:
        # Such as while another thread is importing it. The task must run without its trace.
        return None


def tell_opentelemetry(trace: Trace) -> Callable[[], None] | None:
    """Continue *trace* in OpenTelemetry where it has no span; return the function that undoes it.

    Its Celery instrumentation overwrites our headers with its own span, which would begin another
    trace otherwise.
    """
    otel, context = map(sys.modules.get, ("opentelemetry.trace", "opentelemetry.context"))
    if otel is None or context is None or of_opentelemetry() is not None:
        return None
    try:
        span = otel.SpanContext(
            trace_id=int(trace.parent[3:35], 16),
            span_id=int(trace.parent[36:52], 16),
            is_remote=True,
            trace_flags=otel.TraceFlags(int(trace.parent[53:55], 16)),
            trace_state=otel.TraceState.from_header([trace.state]) if trace.state else None,
        )
        token = context.attach(otel.set_span_in_context(otel.NonRecordingSpan(span)))
        return partial(context.detach, token)
    except Exception:
        return None
