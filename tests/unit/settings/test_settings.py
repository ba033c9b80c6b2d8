"""Settings are validated strictly, and the error says what would be right."""

from __future__ import annotations

import math
import pickle
from dataclasses import Field, fields
from typing import Any

import pytest
from kombu.utils.json import dumps

from celery_delayq.errors import ConfigError
from celery_delayq.settings import Hidden, Settings

NUMBERS = [field for field in fields(Settings) if "low" in field.metadata]


def setting(name: str, value: Any) -> Any:
    return getattr(Settings.from_options({"delayq": {name: value}}), name)


def refusal(name: str, value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        setting(name, value)
    return str(caught.value)


@pytest.mark.parametrize("options", [None, {"visibility_timeout": 5}, {"delayq": {}}])
def test_without_options_everything_has_its_default(options: Any) -> None:
    expected = Settings(
        dispatch=True,
        dispatch_interval=1.0,
        dispatch_batch=50,
        registry_refresh=30.0,
        min_delay=0.0,
        lease=30.0,
        max_deliveries=5,
        block_timeout=1.05,
        wait_replicas=0,
        wait_timeout=1.0,
    )
    assert Settings.from_options(options) == expected


def test_given_options_are_taken() -> None:
    given = {"dispatch": False, "dispatch_interval": 1, "dispatch_batch": 7, "min_delay": 0.5}

    expected = Settings(dispatch=False, dispatch_interval=1.0, dispatch_batch=7, min_delay=0.5)
    assert Settings.from_options({"delayq": given}) == expected


@pytest.mark.parametrize("field", NUMBERS, ids=lambda field: field.name)
def test_a_number_of_its_range_is_taken_and_no_other_value(field: Field[Any]) -> None:
    low, high, whole = field.metadata["low"], field.metadata["high"], type(field.default) is int
    around = (low - 1, low - 0.001, high + 1, high * 1.001)
    wrong = (*around, -1, 10**400, math.nan, math.inf, "1", "x", None, True, False)
    kind = "a whole number" if whole else "a number"
    kind += "" if whole or field.name == "promote_rate" else " of seconds"

    for value in (low, high, int(high)):
        assert (setting(field.name, value), type(setting(field.name, value))) == (
            value,
            type(field.default),
        )
    for value in (*wrong, 10.0) if whole else wrong:
        assert refusal(field.name, value) == (
            f"delayq setting {field.name}={value!r}: expected {kind} from {low:g} to {high:g}"
        )


@pytest.mark.parametrize("value", [1, "yes"])
def test_a_switch_is_true_or_false(value: Any) -> None:
    expected = f"delayq setting dispatch={value!r}: expected True or False"
    assert refusal("dispatch", value) == expected


@pytest.mark.parametrize(
    ("given", "told"), [({"lease": 1, "max_ready": 5}, "has lease"), (7, "is of type int")]
)
def test_what_a_queue_cannot_have_is_named(given: Any, told: str) -> None:
    right = "promote_rate, max_ready, max_scheduled, dead_letters_age, dead_letters_max"

    assert refusal("queues", {"mail": given}) == (
        f"delayq setting queues['mail'] {told}: expected a mapping with some of {right}"
    )


@pytest.mark.parametrize("value", [None, 7, b"sqlite:///dead.db", "dead.db", ["sqlite:///x"], True])
def test_an_archive_is_a_url(value: Any) -> None:
    assert "dead_letters_archive: expected a URL" in refusal("dead_letters_archive", value)


def test_the_url_of_an_archive_is_shown_by_nothing() -> None:
    url = "postgresql://shop:hunter2@db/shop"

    for value in (url, Hidden(url)):
        settings = Settings.from_options({"delayq": {"dead_letters_archive": value}})
        assert settings.dead_letters_archive == url
        assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr({"a": Hidden(url)}) + dumps(Hidden(url))
    assert pickle.loads(pickle.dumps(Hidden(url))).text == url
    assert "hunter2" not in refusal("dead_letters_archive", "shop:hunter2@db")


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        Settings.from_options({"delayq": ["dispatch"]})
