"""The help of each command says what every argument is, and fits a terminal of 80 columns."""

from __future__ import annotations

import click
import pytest

from tests.support.cli import leaves

COMMANDS = dict(leaves())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_explained(name: str) -> None:
    command = COMMANDS[name]
    records = [
        parameter.get_help_record(click.Context(command))
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    ]

    assert all(record and all(record) for record in records)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_into_80_columns(name: str) -> None:
    told = COMMANDS[name].get_help(click.Context(COMMANDS[name], info_name=f"celery delayq {name}"))

    assert [line for line in told.splitlines() if len(line) > 80] == []
