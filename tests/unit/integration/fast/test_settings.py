"""Settings are looked up faster, and the results are Celery's."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.utils.collections import ConfigurationView

from celery_delayq import DelayQ
from celery_delayq.integration.fast import settings


def unchanged(function: Any) -> Any:
    """Return the function of Celery that ``DelayQ(app)`` may have replaced."""
    return getattr(function, "__wrapped__", function)


@pytest.mark.parametrize("prefix", ["", "CELERY"])
def test_settings_are_found_as_celery_finds_them(prefix: str) -> None:
    app = Celery("app", set_as_current=False, namespace=prefix or None)
    DelayQ(app)
    stock = unchanged(ConfigurationView.__getitem__)
    ours = (
        settings.find_settings(ConfigurationView, stock)
        if settings.CELERY_LOOKS_BY_PLACE
        else stock
    )
    app.conf.update(task_ignore_result=True, own="a")

    names = ["own", "CELERY_IGNORE_RESULT", *app.conf]
    assert [ours(app.conf, name) for name in names] == [stock(app.conf, name) for name in names]
    with pytest.raises(KeyError):
        app.conf["unknown"]


@pytest.mark.parametrize(
    ("given", "namespace"),
    [
        ({"task_always_eager": True, "timezone": "Asia/Tokyo"}, None),
        ({"CELERY_ALWAYS_EAGER": True, "CELERY_TIMEZONE": "Asia/Tokyo"}, None),
        ({"CELERY_TASK_ALWAYS_EAGER": True, "CELERY_TIMEZONE": "Asia/Tokyo"}, "CELERY"),
    ],
    ids=["new names", "old names", "a namespace"],
)
@pytest.mark.parametrize("first", ["DelayQ", "settings"])
def test_the_lookup_that_loads_the_settings_finds_its_own(
    given: dict[str, Any], namespace: str | None, first: str
) -> None:
    app = Celery("app", broker="memory://", set_as_current=False)
    if first == "DelayQ":
        DelayQ(app)
    app.config_from_object(given, namespace=namespace)
    if first == "settings":
        DelayQ(app)

    found = [(app.conf.task_always_eager, app.conf.timezone) for _ in range(2)]

    assert found == [(True, "Asia/Tokyo")] * 2
