"""``doctor``: find problems of an app and its broker, with advice."""

from __future__ import annotations

from typing import cast

import click
from rich.text import Text

from celery_delayq.admin.accounts import ROLES, Role
from celery_delayq.admin.doctor import FAULT, NOTE, UNKNOWN, Finding, diagnose
from celery_delayq.admin.exit_codes import WrongUse
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import json_option, option
from celery_delayq.cli.text import number_of
from celery_delayq.errors import ConfigError
from celery_delayq.utils.text import spelled

_STYLES = {FAULT: "bold red", UNKNOWN: "dim", NOTE: "cyan"}


@command()
@option(
    "--role",
    type=click.Choice(ROLES),
    default="worker",
    show_default=True,
    help="Whose rights the Redis account must have.",
)
@json_option
def doctor(delayq: DelayQ, role: str) -> bool:
    """Find what is wrong with the app and its broker.

    Each finding says what to do. Checked are settings, versions, rights, the server's memory, disk,
    clock and latency, whether work flows, whether beat or stock workers run beside it, and all that
    fsck checks. Nothing is changed. Exits with 1 when something is wrong; what cannot be told, and
    notes of what people have set, do not count.

    \b
    Examples:
      celery -A shop delayq doctor
      celery -A shop delayq doctor --json | jq -r '.findings[].todo'
    """
    try:
        with screen.progress_bar(description="fsck", at_once=False) as bar:
            found = diagnose(delayq.session, role=cast("Role", role), progress=bar)
    except ConfigError as exc:
        raise WrongUse(spelled(str(exc))) from exc
    if screen.is_json():
        screen.print_json(found.as_dict())
    else:
        output = screen.console()
        for each in found.findings:
            output.print(_text(each), soft_wrap=True)
        output.print(", ".join(f"{name} {version}" for name, version in found.versions.items()))
        wrong = number_of(len(found.wrong), "finding", "findings")
        said = wrong if found.wrong else "nothing wrong"
        unknown, notes = (sum(each.level == level for each in found.findings)
                          for level in (UNKNOWN, NOTE))  # fmt: skip
        said += f", {unknown} cannot be told" if unknown else ""
        said += f", {number_of(notes, 'note', 'notes')}" if notes else ""
        output.print(f"{len(found.checks)} checks: {said}")
    return not found.wrong


def _text(finding: Finding) -> Text:
    """Return the two lines of a finding."""
    text = Text(f"{finding.level}: ", _STYLES.get(finding.level, "yellow"))
    return text.append(f"{finding.check}: {spelled(finding.what)}\n  → {finding.todo}", "default")
