"""``celery -A app delayq …``: for people, and with ``--json`` for scripts.

``_MODULES`` names the module of each command, which declares the command with
:func:`~celery_delayq.cli.command.command`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version

import click

from celery_delayq.utils.text import did_you_mean

#: Each command, and its module in ``commands``.
_MODULES = {
    "cancel": "change",
    "cancel-canvas": "change",
    "compat": "checks.compat",
    "count": "show",
    "dead": "dead_letters",
    "dispatch": "services.dispatch",
    "doctor": "checks.doctor",
    "export": "transfer",
    "fsck": "checks.fsck",
    "get": "show",
    "health": "checks.health",
    "history": "history",
    "import": "transfer",
    "limits": "limits",
    "list": "show",
    "metrics": "services.metrics",
    "migrate": "migrate",
    "pause": "pause",
    "paused": "pause",
    "periodic": "periodic",
    "plot": "plot",
    "rename": "change",
    "reschedule": "change",
    "resume": "pause",
    "rewrite": "change",
    "run-now": "change",
    "stats": "stats",
    "timeline": "history",
    "top": "services.top",
    "topology": "topology",
    "update": "change",
    "web": "services.web",
    "why": "why",
}


class Group(click.Group):
    """A group whose error for an unknown command names a similar one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and its arguments (click.UsageError if it is unknown)."""
        name = args[0]
        is_unknown = name[:1] != "-" and self.get_command(ctx, name) is None
        if is_unknown and not ctx.resilient_parsing:
            ctx.fail(
                f"No such command {name!r}{did_you_mean(name, self.list_commands(ctx)) or '.'}"
            )
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that imports the module of a command when the command is used.

    ``celery`` imports this module at every start.
    """

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(_MODULES)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """Return a command by its name, or None if it does not exist."""
        if name not in _MODULES:
            return None
        module = import_module(f"{__name__}.commands.{_MODULES[name]}")
        commands = (each for each in vars(module).values() if isinstance(each, click.Command))
        return next((each for each in commands if each.name == name), None)


def _print_versions(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the versions of this package and of what it changes."""
    if is_asked:
        names = ("celery-delayq", "celery", "kombu", "redis")
        click.echo(", ".join(f"{name} {version(name)}" for name in names))
        ctx.exit()


@click.group(cls=LazyGroup)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_versions,
    help="Show the versions of celery-delayq, celery, kombu and redis.",
)
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
