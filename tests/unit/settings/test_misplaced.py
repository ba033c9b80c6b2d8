"""Options that were most likely meant for us are named with their right place, and no others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.transport import redis as stock

from celery_delayq.errors import ConfigError
from celery_delayq.settings import Settings, misplaced_option_warnings

KNOWN = stock.Channel.from_transport_options

OURS = [field.name for field in fields(Settings)]


def options_of_kombu() -> set[str]:
    """Return all names that kombu's transports and connections read from transport options."""
    names = set(KNOWN)
    for path in Path(kombu.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        names.update(re.findall(r"options(?:\.get|\.pop)?[(\[]\s*['\"](\w+)['\"]", text))
        for block in re.findall(r"from_transport_options = \((.*?)\)", text, re.DOTALL):
            names.update(re.findall(r"['\"](\w+)['\"]", block))
    return names


@pytest.mark.parametrize(
    "name", ["delayqs", "delay_q", "DelayQ", "delayQ", "delayq_", "dealyq", "delay"]
)
def test_a_misspelt_delayq_is_named(name: str) -> None:
    [warning] = misplaced_option_warnings({name: {"lease": 5.0}}, KNOWN)

    assert f"broker_transport_options[{name!r}] has no effect; did you mean 'delayq'?" in warning


@pytest.mark.parametrize("name", OURS)
def test_our_settings_beside_delayq_are_named(name: str) -> None:
    [warning] = misplaced_option_warnings({name: 1, "delayq": {}}, KNOWN)

    assert f"broker_transport_options[{name!r}] has no effect" in warning
    assert f"did you mean ['delayq'][{name!r}]?" in warning


@pytest.mark.parametrize("name", ["dispatch_intervall", "max_shceduled", "registry-refresh"])
def test_our_settings_beside_delayq_are_named_although_they_are_misspelt(name: str) -> None:
    [warning] = misplaced_option_warnings({name: 1}, KNOWN)

    assert re.search(r"did you mean \['delayq'\]\['\w+'\]\?", warning)


def test_no_option_of_kombu_is_taken_for_one_of_ours() -> None:
    names = options_of_kombu()
    assert {"visibility_timeout", "global_keyprefix", "socket_timeout", "interval_max"} <= names

    names.add("master_name")
    for value in (1, {"lease": 1}):
        assert misplaced_option_warnings(dict.fromkeys(names, value), KNOWN) == []


@pytest.mark.parametrize(
    "options",
    [
        None,
        {},
        {"delayq": {}},
        {"something_new": {"a": 1}, "health_check_interval": 5, "max_connections": 10},
        {"socket_keepalive_options": {}, "retry_policy": {"timeout": 5.0}},
        {"delayed": 1, "delay": {"a": 1}, "query": {}, b"lease": 1, 7: 8},
    ],
)
def test_what_nobody_knows_is_left_alone(options: Any) -> None:
    assert misplaced_option_warnings(options, KNOWN) == []


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("max_readdy", " (did you mean max_ready?)"),
        ("leese", " (did you mean lease?)"),
        ("zzz", ""),
    ],
)
def test_an_unknown_setting_is_refused_with_what_may_be_meant(given: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_options({"delayq": {given: 1}})

    assert str(caught.value) == (
        f"unknown delayq setting(s): {given}{meant}; valid are: {', '.join(OURS)}"
    )
