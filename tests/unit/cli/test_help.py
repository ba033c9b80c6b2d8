"""The help of each command says what every argument is, has examples, and fits 80 columns."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import walk_packages

import click
import pytest

from celery_delayq.cli import commands, delayq
from tests.support.cli import leaves

COMMANDS = dict(leaves())


def test_every_command_of_a_module_is_found_by_its_name() -> None:
    made = set()
    for module in walk_packages(commands.__path__, f"{commands.__name__}."):
        found = vars(import_module(module.name)).values()
        made |= {each.name for each in found if isinstance(each, click.Command)}

    names = {*delayq.list_commands(click.Context(delayq))}
    grouped = {name.rpartition(" ")[2] for name in COMMANDS if " " in name}
    assert made - grouped <= names
    assert names <= made


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
def test_help_fits_into_80_columns_and_has_examples(name: str) -> None:
    told = COMMANDS[name].get_help(click.Context(COMMANDS[name], info_name=f"celery delayq {name}"))

    assert [line for line in told.splitlines() if len(line) > 80] == []
    assert re.search(rf"Examples?:\n +celery -A shop delayq {name}\b", told)


@pytest.mark.parametrize("name", ["", "dead", "periodic"])
def test_help_of_a_group_shows_whole_sentences(name: str) -> None:
    context = click.Context(delayq, info_name="delayq")
    group = delayq.get_command(context, name) if name else delayq
    assert group is not None

    told = group.get_help(click.Context(group, info_name=f"delayq {name}"))

    assert [line for line in told.splitlines() if len(line) > 80] == []
    assert "..." not in told.replace("[ARGS]...", "")
