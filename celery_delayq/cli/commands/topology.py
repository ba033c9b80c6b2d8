"""``topology``: the delay exchanges and queues in RabbitMQ."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import click
from rich.text import Text

from celery_delayq.admin.rabbitmq import topology as items
from celery_delayq.admin.rabbitmq.topology import State
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import flag, json_option, name_option, option
from celery_delayq.utils.text import spelled

_STATE_TEXTS = {
    State.DECLARED: "ok",
    State.MISSING: "not declared yet",
    State.DIFFERENT: "declared differently",
}


@command()
@flag("--apply", help="Declare what is missing, with the way to the app's queues.")
@flag("--check", help="Compare what RabbitMQ has with what it should have.")
@flag("--delete", help="Refuse further delays, and remove everything once no task waits.")
@name_option(
    "--exchange",
    "exchanges",
    multiple=True,
    metavar="EXCHANGE",
    help="A topic exchange to which delayed tasks are sent, beside those of the app's queues.",
)
@option(
    "--settle",
    type=click.FloatRange(0),
    default=190.0,
    show_default=True,
    help="With --delete: for how many seconds all must be empty. RabbitMQ holds a message that it "
    "could not pass on for three minutes, and counts it nowhere.",
)
@json_option
def topology(
    delayq: DelayQ,
    apply: bool,
    check: bool,
    delete: bool,
    exchanges: tuple[str, ...],
    settle: float,
) -> bool:
    """Show where tasks wait in RabbitMQ, declare or remove it.

    These are the exchanges and queues of delays. Nobody has to: tasks declare what they need. It
    is for brokers where producers may not (setting declare=False). With --json and no other option
    it prints what rabbitmqctl import_definitions reads. --check lists what is not declared yet, and
    exits with 1 when something is declared differently, or is missing with declare=False; it cannot
    see bindings. --delete leaves the exit queues of exchanges (delayq.exit.EXCHANGE): tasks in them
    wait for a binding, and RabbitMQ counts them for rabbitmqctl list_queues only.

    \b
    Examples:
      celery -A shop delayq topology --apply
      celery -A shop delayq topology --check
      celery -A shop delayq topology --json > definitions.json
      celery -A shop delayq topology --delete
    """
    if apply + check + delete > 1:
        raise click.UsageError("give one of --apply, --check and --delete")
    app, output = delayq.app, screen.console()
    if apply:
        count = items.apply(app, exchanges)
        _print({"declared": count}, f"declared: {count} exchanges, queues and bindings")
    elif delete:
        for remaining_seconds in items.delete(app, settle):
            if not screen.is_json() and output.is_terminal:
                output.print(f"empty; {remaining_seconds:.0f} s to go ", end="\r")
        _print({"deleted": True}, "removed, but for exit queues")
    elif screen.is_json() and not check:
        screen.print_json(items.definitions(app, exchanges))
    else:
        found = items.check(app, exchanges)
        if screen.is_json():
            screen.print_json({"items": [asdict(each) for each in found]})
        else:
            # Not a table, because names and RabbitMQ's reasons are long.
            for each in found:
                if not check or each.state is not State.DECLARED:
                    state = each.reason or _STATE_TEXTS[each.state]
                    text = f"{each.kind} {spelled(each.name)}: {state}"
                    output.print(Text(text), soft_wrap=True)
            counts = Counter(each.state for each in found)
            parts = [f"{counts[state]:,} {name}" for state, name in _STATE_TEXTS.items()]
            output.print(f"of {len(found):,}: {', '.join(parts)}")
        return not (check and any(each.is_fault for each in found))
    return True


def _print(data: object, text: str) -> None:
    if screen.is_json():
        screen.print_json(data)
    else:
        screen.console().print(text)
