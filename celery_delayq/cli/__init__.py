"""``celery -A app delayq …``: for people, and with ``--json`` for scripts.

``_MODULES`` names the module of each command, which declares the command with
:func:`~celery_delayq.cli.command.command`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version

import click

from celery_delayq.utils.text import did_you_mean

#: Each command, and its module in ``commands``, by what the command is for: the table of
#: ``docs/overview.md``.
_COMMANDS = {
    "look": {
        "stats": "stats",
        "list": "show",
        "get": "show",
        "count": "show",
        "why": "why",
        "timeline": "history",
        "history": "history",
        "paused": "pause",
        "top": "services.top",
        "plot": "plot",
    },
    "change": {
        "cancel": "change",
        "cancel-canvas": "change",
        "reschedule": "change",
        "run-now": "change",
        "update": "change",
        "pause": "pause",
        "resume": "pause",
    },
    "handle failures": {"dead": "dead_letters"},
    "limit": {"limits": "limits"},
    "have periodic tasks": {"periodic": "periodic"},
    "deploy": {"compat": "checks.compat", "rename": "change", "rewrite": "change"},
    "move data": {"export": "transfer", "import": "transfer", "migrate": "migrate"},
    "operate": {
        "doctor": "checks.doctor",
        "health": "checks.health",
        "fsck": "checks.fsck",
        "metrics": "services.metrics",
        "dispatch": "services.dispatch",
        "web": "services.web",
        "topology": "topology",
    },
}
_MODULES = {name: module for part in _COMMANDS.values() for name, module in part.items()}


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their short texts, by what they are for."""
        width = max(map(len, _MODULES))
        room = formatter.width - 6 - width
        for purpose, names in _COMMANDS.items():
            commands = [self.get_command(ctx, name) for name in names]
            rows = [(each.name or "", each.get_short_help_str(room)) for each in commands if each]
            with formatter.section(f"To {purpose}"):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows])


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
