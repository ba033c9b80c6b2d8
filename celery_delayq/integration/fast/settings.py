"""Look up settings faster.

Celery looks up five settings for each task that it sends. Each lookup raises an exception for each
place without the setting, and computes the other names of the setting again. Here the names are
computed once. Benchmark row: ``fast-settings``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.collections import ConfigurationView

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace

#: Whether Celery tries all names of a setting in one place before the next place (from 5.7).
CELERY_LOOKS_BY_PLACE: bool = ConfigurationView({"a": True}, [{"x_a": False}], prefix="x")["a"]


def find_settings(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the lookup of a setting: use stored names, and raise no exceptions."""

    def find(settings: Any, key: str) -> Any:
        if settings.key_t is None:
            known = vars(settings).setdefault("_delayq_names", {})
            asked = key, settings.prefix  # the first lookup loads the settings and their prefix
            names = known.get(asked) or known.setdefault(asked, settings._to_keys(key))
            for place in settings.maps:
                for name in names:
                    if name in place:
                        return place[name]
        return stock(settings, key)

    return find


GROUP = Group(
    name="settings",
    process=(
        Replace(
            target="celery.utils.collections:ConfigurationView.__getitem__",
            by=find_settings,
            versions="celery>=5.7",
            is_needed=CELERY_LOOKS_BY_PLACE,
            without="Celery looks up five settings for each task, and raises an exception for each "
            "place without the setting.",
        ),
    ),
    upstream="celery: in `ConfigurationView.__getitem__` test `if name in place` instead of "
    "catching `KeyError`, and keep the result of `_to_keys(key)` in a dictionary.",
)
