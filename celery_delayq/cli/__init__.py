"""``celery -A app delayq …``: for people, and with ``--json`` for scripts.

Put a new command into the module with similar commands, or into a module of its own, and into
:data:`COMMANDS`. Commands of ``delayq dead`` and ``delayq periodic`` are in the rooms
``dead_letters`` and ``periodic``. Declare each command with
:func:`~celery_delayq.cli.command.command`.
"""

from __future__ import annotations

from importlib import import_module

import click

#: Name of each command to its module and function. ``celery`` loads this module at every start,
#: so the module of a command is imported only when the command is used.
COMMANDS = {
    "cancel": "celery_delayq.cli.change:cancel",
    "cancel-canvas": "celery_delayq.cli.change:cancel_canvas",
    "count": "celery_delayq.cli.show:count",
    "dead": "celery_delayq.cli.dead_letters:dead",
    "dispatch": "celery_delayq.cli.dispatch:dispatch",
    "doctor": "celery_delayq.cli.checks.doctor:doctor",
    "export": "celery_delayq.cli.transfer:export",
    "fsck": "celery_delayq.cli.fsck:fsck",
    "get": "celery_delayq.cli.show:get",
    "health": "celery_delayq.cli.checks.health:health",
    "import": "celery_delayq.cli.transfer:import_",
    "list": "celery_delayq.cli.show:list_",
    "metrics": "celery_delayq.cli.metrics:metrics",
    "migrate": "celery_delayq.cli.migrate:migrate",
    "pause": "celery_delayq.cli.pause:pause",
    "paused": "celery_delayq.cli.pause:paused",
    "periodic": "celery_delayq.cli.periodic:periodic",
    "reschedule": "celery_delayq.cli.change:reschedule",
    "resume": "celery_delayq.cli.pause:resume",
    "run-now": "celery_delayq.cli.change:run_now",
    "stats": "celery_delayq.cli.stats:stats",
    "topology": "celery_delayq.cli.topology:topology",
}


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is used."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*COMMANDS]

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """Return a command by its name, or None if it does not exist."""
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name].split(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found


@click.group(cls=LazyGroup)
def delayq() -> None:
    """Manage delayed tasks in Redis or RabbitMQ (celery_delayq).

    A command exits with 0 when all was done, with 1 after an error or when something was not done
    (it runs already, it is unknown, you answered no), and with 2 after wrong use. With --json it
    prints JSON on standard output; errors go to standard error. Times are shown in local time with
    their offset; one without an offset is read as local time.

    \b
    Examples:
      celery -A shop delayq stats
      celery -A shop delayq list --due-to 1h
      celery -A shop delayq cancel --help
    """
