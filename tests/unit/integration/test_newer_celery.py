"""A worker that uses the package says so on a Celery that is newer than the tested ones."""

from __future__ import annotations

from itertools import product

import celery
import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.celery_versions import NEWEST_TESTED_CELERY
from celery_delayq.integration import app_warnings

MAJOR, MINOR = NEWEST_TESTED_CELERY

#: Versions of Celery, and whether they are newer.
VERSIONS: dict[tuple[int, ...], bool] = {
    (MAJOR, MINOR, 9): False,
    (MAJOR, MINOR + 1, 0): True,
    (MAJOR + 1, 0, 0): True,
}

#: Brokers and whether there is DelayQ(app), and whether the app uses the package.
APPS = {
    ("delayq+redis://", False): True,
    ("delayq+redis://", True): True,
    ("redis://", True): True,
    ("redis://", False): False,
    ("memory://", False): False,
}


@pytest.mark.parametrize(("version", "kind"), [*product(VERSIONS, APPS)], ids=str)
def test_only_a_newer_minor_version_is_named_and_only_where_the_package_is_used(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], kind: tuple[str, bool]
) -> None:
    monkeypatch.setattr(celery, "VERSION", version)
    broker, has_extension = kind
    app = Celery("app", broker=broker, set_as_current=False)
    if has_extension:
        DelayQ(app)
    with app.connection_for_write() as connection:
        texts = [*app_warnings.problems(app, connection)]

    is_named = any("is newer than the newest tested one" in text for text in texts)
    assert is_named == (VERSIONS[version] and APPS[kind])
