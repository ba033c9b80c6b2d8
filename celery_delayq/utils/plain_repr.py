"""The texts that Celery's ``saferepr`` makes of simple arguments, in less time."""

from __future__ import annotations

from typing import Any

#: Classes of values whose ``repr`` is what ``saferepr`` makes of them, but for some texts.
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})


def plain_repr(value: Any, limit: int) -> str | None:
    """Return the ``saferepr`` of simple arguments, or None for others.

    Parameters
    ----------
    limit : int
        Characters from which ``saferepr`` cuts the text.
    """
    kind = type(value)
    if kind is dict:
        flat = all(type(k) is str and type(v) in _PLAIN_TYPES for k, v in value.items())
    else:
        flat = kind in (tuple, list) and all(type(v) in _PLAIN_TYPES for v in value)
    if not flat:
        return None
    text = repr(value)
    return text if is_plain(text, limit) else None


def is_plain(text: str, limit: int) -> bool:
    """Return whether ``saferepr`` gives the same text for simple arguments as ``repr``."""
    # It cuts long texts, and quotes and escapes in its own way.
    return len(text) <= limit and "\\" not in text and '"' not in text
