"""The reason for which a message is rejected."""

from __future__ import annotations

import sys
from typing import Any

#: What Celery raises on a task message that is not made as it expects.
MALFORMED = (TypeError, ValueError, LookupError, AttributeError)


class RejectsUndecodable:
    """A message that is rejected if it is acknowledged because it cannot be decoded."""

    undecodable: BaseException | None = None
    errors: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.errors:  # its body cannot be decompressed
            _, self.undecodable, _ = self.errors[0]

    def _decode(self) -> Any:
        try:
            return super()._decode()  # type: ignore[misc]
        except Exception as exc:
            self.undecodable = exc
            raise

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge; Celery and kombu also acknowledge messages that they cannot decode."""
        if self.undecodable is None:
            super().ack(multiple)  # type: ignore[misc]
        else:
            self.reject()  # type: ignore[attr-defined]


def reason_of(message: Any) -> str:
    """Return why a message is being rejected, as far as the current exception says."""
    exc = getattr(message, "undecodable", None)
    if exc is not None:
        return f"undecodable message: {exc}"
    handled = sys.exc_info()[1]
    name = (getattr(message, "headers", None) or {}).get("task")
    if isinstance(handled, KeyError) and name in handled.args:
        return f"unknown task {name!r}"
    return "rejected" if handled is None else f"rejected: {type(handled).__name__}: {handled}"
