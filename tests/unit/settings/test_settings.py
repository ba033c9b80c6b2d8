"""Settings are validated strictly, and the error says what would be right."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from kombu.utils.json import dumps

from celery_delayq.errors import ConfigError
from celery_delayq.settings import Hidden, Settings


def test_without_options_everything_has_its_default() -> None:
    expected = Settings(
        dispatch=True,
        dispatch_interval=1.0,
        dispatch_batch=100,
        registry_refresh=30.0,
        min_delay=0.0,
        lease=30.0,
        max_deliveries=5,
        block_timeout=1.05,
        wait_replicas=0,
        wait_timeout=1.0,
    )
    assert Settings.from_options(None) == expected
    assert Settings.from_options({"visibility_timeout": 5}) == expected
    assert Settings.from_options({"delayq": {}}) == expected


def test_given_options_are_taken() -> None:
    given = {"dispatch": False, "dispatch_interval": 1, "dispatch_batch": 7, "min_delay": 0.5}

    settings = Settings.from_options({"delayq": given})

    assert (settings.dispatch, settings.dispatch_batch, settings.min_delay) == (False, 7, 0.5)
    assert isinstance(settings.dispatch_interval, float)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", 1),
        ("lease", 86_400),
        ("max_deliveries", 0),
        ("max_deliveries", 1_000_000),
        ("block_timeout", 0.01),
        ("block_timeout", 1),
        ("wait_replicas", 100),
        ("wait_timeout", 60),
    ],
)
def test_the_ends_of_a_range_are_in_it(name: str, value: Any) -> None:
    given = getattr(Settings.from_options({"delayq": {name: value}}), name)

    assert given == value
    assert type(given) is (int if name in ("max_deliveries", "wait_replicas") else float)


def test_an_unknown_name_is_refused_and_the_valid_ones_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_options({"delayq": {"dispach": True}})

    assert "dispach" in str(caught.value)
    for name in ("dispatch_interval", "dispatch_batch", "registry_refresh", "min_delay"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"), [({"lease": 1, "max_ready": 5}, "has lease"), (7, "is of type int")]
)
def test_what_a_queue_cannot_have_is_named(given: Any, told: str) -> None:
    right = "promote_rate, max_ready, max_scheduled, dead_letters_age, dead_letters_max"

    with pytest.raises(ConfigError) as caught:
        Settings.from_options({"delayq": {"queues": {"mail": given}}})

    assert str(caught.value) == (
        f"delayq setting queues['mail'] {told}: expected a mapping with some of {right}"
    )


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
        ("lease", 0.5),
        ("lease", 0),
        ("lease", 86_401),
        ("lease", "x"),
        ("lease", float("nan")),
        ("lease", None),
        ("lease", True),
        ("max_deliveries", -1),
        ("max_deliveries", 1.5),
        ("max_deliveries", 1_000_001),
        ("max_deliveries", "5"),
        ("max_deliveries", False),
        ("block_timeout", 0),
        ("block_timeout", 0.001),
        ("block_timeout", 1.5),
        ("block_timeout", float("inf")),
        ("wait_replicas", -1),
        ("wait_replicas", 0.5),
        ("wait_replicas", 101),
        ("wait_timeout", 0),
        ("wait_timeout", 61),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Settings.from_options({"delayq": {name: value}})

    assert repr(value) in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("lease", 0.5, "a number of seconds from 1 to 86400"),
        ("max_deliveries", -1, "a whole number from 0 to 1e+06"),
        ("block_timeout", 2, "a number of seconds from 0.01 to 1.05"),
        ("wait_replicas", "all", "a whole number from 0 to 100"),
    ],
)
def test_the_error_says_what_would_be_right(name: str, value: Any, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_options({"delayq": {name: value}})

    assert str(caught.value) == f"delayq setting {name}={value!r}: expected {right}"


@pytest.mark.parametrize("value", [None, 7, b"sqlite:///dead.db", "dead.db", ["sqlite:///x"], True])
def test_an_archive_is_a_url(value: Any) -> None:
    with pytest.raises(ConfigError, match="dead_letters_archive: expected a URL"):
        Settings.from_options({"delayq": {"dead_letters_archive": value}})


def test_the_url_of_an_archive_is_shown_by_nothing() -> None:
    url = "postgresql://shop:hunter2@db/shop"

    for value in (url, Hidden(url)):
        settings = Settings.from_options({"delayq": {"dead_letters_archive": value}})
        assert settings.dead_letters_archive == url
        assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr({"a": Hidden(url)}) + dumps(Hidden(url))
    assert pickle.loads(pickle.dumps(Hidden(url))).text == url
    with pytest.raises(ConfigError) as caught:
        Settings.from_options({"delayq": {"dead_letters_archive": "shop:hunter2@db"}})
    assert "hunter2" not in str(caught.value)


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        Settings.from_options({"delayq": ["dispatch"]})
