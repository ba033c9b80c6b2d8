"""Each setting, and each argument of ``DelayQ``, with values of other types: taken or refused."""

from __future__ import annotations

import math
from dataclasses import Field, fields
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import DelayQError
from celery_delayq.settings import Settings

#: Names and values. "1e400" of a file of settings is infinity.
VALUES: dict[str, Any] = {
    "None": None,
    "empty text": "",
    "text": "abc",
    "-1": -1,
    "0": 0,
    "infinity": math.inf,
    "empty list": [],
    "empty mapping": {},
    "True": True,
}


def verdicts(check: Any) -> dict[str, str]:
    """Return the error of each value, "" if it is taken. An error is one clear line."""
    found = {}
    for name, value in VALUES.items():
        try:
            check(value)
        except DelayQError as exc:
            found[name] = str(exc)
        else:
            found[name] = ""
    return found


def taken_by(field: Field[Any]) -> set[str]:
    """Return the names of the values that a setting takes."""
    if isinstance(field.default, bool):
        return {"True"}
    if "low" in field.metadata:
        return {"0"} if field.metadata["low"] <= 0 else set()
    return {
        "dead_letters_archive": {"empty text"},
        "liveness_file": {"empty text"},
        "prefix": {"text"},
        "queue_type": set(),
        "queues": {"empty mapping"},
    }[field.name]


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_a_setting_is_taken_or_refused_by_its_name(field: Field[Any]) -> None:
    found = verdicts(lambda value: Settings.from_options({"delayq": {field.name: value}}))

    assert {name for name, error in found.items() if not error} == taken_by(field)
    for name, error in found.items():
        if error:
            assert error.startswith(f"delayq setting {field.name}"), (name, error)
            assert "expected " in error, (name, error)
            assert "\n" not in error, (name, error)


#: The values that each argument of ``DelayQ`` takes.
ARGUMENTS = {
    "at_least_once": {"True"},
    "retry": {"None", "0", "empty mapping"},
    "limits": {"None", "empty mapping"},
    "renamed": {"None", "empty mapping"},
    "webhook": {"None"},
    "web_changes": {"None"},
    "web_user_header": {"None", "text"},
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_is_taken_or_refused_by_its_name(argument: str) -> None:
    found = verdicts(
        lambda value: DelayQ(Celery("shop", set_as_current=False), **{argument: value})
    )

    assert {name for name, error in found.items() if not error} == ARGUMENTS[argument]
    for name, error in found.items():
        if error:
            assert argument in error, (name, error)
            assert "expected " in error, (name, error)
            assert "\n" not in error, (name, error)
