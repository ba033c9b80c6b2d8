"""``update``: change the arguments and other parts of a scheduled task."""

from __future__ import annotations

from typing import Any

import click

from celery_delayq.app import DelayQ
from celery_delayq.cli import options, screen
from celery_delayq.cli.apply import item_outcome
from celery_delayq.cli.command import command
from celery_delayq.cli.commands.show import ENTRIES
from celery_delayq.cli.items import ItemOutcome, change_each
from celery_delayq.errors import ConfigError, InvalidOption, NotSupported
from celery_delayq.utils.text import spelled


@command()
@options.id_argument
@options.with_changes
@options.queue_option
@options.if_eta_option
@options.json_option
def update(
    delayq: DelayQ, id: str, changes: dict[str, Any], queue: str | None, if_eta: str | None
) -> bool:
    """Change a scheduled or held task: its arguments, priority, expiry or headers.

    What is not given stays, with its due time, its id and what follows in its canvas. Its unique
    key and its limit follow the arguments. Exits with 1 when it was not changed: a worker may have
    it, or another task has the new unique key.

    \b
    Examples:
      celery -A shop delayq update mail-7 --args '["ann@example.org"]'
      celery -A shop delayq update mail-7 --kwargs '{"text": "Hi"}' --priority 3
      celery -A shop delayq update mail-7 --expires 2h --header tenant=a
      celery -A shop delayq update mail-7 --args '[8]' \\
          --if-eta 2030-01-31T09:00:00Z --json
    """
    if not changes:
        raise click.UsageError(
            "give what is to be changed: --args, --kwargs, --priority, --expires or --header"
        )
    screen.known_tasks(delayq)  # the tasks say which arguments they take

    def change(id: str) -> ItemOutcome:
        try:
            outcome = delayq.update(id, **changes, queue=queue, if_eta=if_eta)
        except NotSupported:
            raise
        except (ConfigError, InvalidOption) as exc:
            raise click.UsageError(spelled(str(exc))) from exc
        return item_outcome(ENTRIES, id, outcome, "updated")

    return change_each([id], change)
