"""Settings are validated strictly, and the error says what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.conf import Settings
from celery_delayq.errors import ConfigError


def test_without_options_everything_has_its_default() -> None:
    expected = Settings(
        dispatch=True,
        dispatch_interval=1.0,
        dispatch_batch=100,
        registry_refresh=30.0,
        min_delay=0.0,
    )
    assert Settings.from_options(None) == expected
    assert Settings.from_options({"visibility_timeout": 5}) == expected
    assert Settings.from_options({"delayq": {}}) == expected


def test_given_options_are_taken() -> None:
    given = {"dispatch": False, "dispatch_interval": 1, "dispatch_batch": 7, "min_delay": 0.5}

    settings = Settings.from_options({"delayq": given})

    assert (settings.dispatch, settings.dispatch_batch, settings.min_delay) == (False, 7, 0.5)
    assert isinstance(settings.dispatch_interval, float)


def test_an_unknown_name_is_refused_and_the_valid_ones_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_options({"delayq": {"dispach": True}})

    assert "dispach" in str(caught.value)
    for name in ("dispatch_interval", "dispatch_batch", "registry_refresh", "min_delay"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dispatch", 1),
        ("dispatch", "yes"),
        ("dispatch_interval", 0),
        ("dispatch_interval", 1.5),
        ("dispatch_interval", "1"),
        ("dispatch_interval", float("nan")),
        ("dispatch_interval", True),
        ("dispatch_batch", 0),
        ("dispatch_batch", 1001),
        ("dispatch_batch", 10.0),
        ("registry_refresh", -1),
        ("registry_refresh", None),
        ("min_delay", -0.1),
        ("min_delay", float("inf")),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Settings.from_options({"delayq": {name: value}})

    assert repr(value) in str(caught.value)
    assert "expected" in str(caught.value)


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        Settings.from_options({"delayq": ["dispatch"]})
