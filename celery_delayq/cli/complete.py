"""Shell completion of option values. After an error there are no suggestions."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from celery_delayq.app import DelayQ

#: Seconds to wait for a Redis that does not answer.
REDIS_TIMEOUT_SECONDS = 1.0

#: Variables that ``celery`` sets from its own options when it runs a command.
_VARIABLES = {
    "broker": "CELERY_BROKER_URL",
    "result_backend": "CELERY_RESULT_BACKEND",
    "loader": "CELERY_LOADER",
    "config": "CELERY_CONFIG_MODULE",
}


def tasks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Suggest the app's tasks. Celery's own tasks are suggested only after ``celery.``."""
    known = _quietly(lambda: _app(ctx).tasks)
    ours = [name for name in known if not name.startswith("celery.")]
    return _beginning(incomplete, ours) or _beginning(incomplete, known)


def queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Suggest the queues of the app and the queues that Redis knows."""
    declared = _quietly(lambda: _app(ctx).amqp.queues)
    known = _quietly(lambda: _delayq(ctx).session.stores.registry())
    return _beginning(incomplete, {*declared, *known})


def periodic(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Suggest the names of periodic entries."""
    names = _quietly(lambda: (entry.name for entry in _delayq(ctx).periodic._all()))
    return _beginning(incomplete, names)


def limits(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Suggest the names of limits."""
    names = _quietly(lambda: (limit.name for limit in _delayq(ctx).limits.list()))
    return _beginning(incomplete, names)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    # The shell reads one name per line.
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


def _quietly(ask: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names. Output of the app is dropped: a shell would read it as suggestions."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return [*ask()]
        except (Exception, SystemExit):
            return []


def _app(ctx: click.Context) -> Any:
    """Find the app as ``celery`` does. ``celery`` itself runs no callback during completion."""
    from celery.app.utils import find_app

    given = ctx.find_root().params
    os.environ.update({_VARIABLES[n]: v for n, v in given.items() if n in _VARIABLES and v})
    app = find_app(given["app"])
    app.loader.import_default_modules()
    return app


def _delayq(ctx: click.Context) -> DelayQ:
    from celery_delayq.app import DelayQ

    delayq = DelayQ.of(_app(ctx))
    delayq.session.redis_timeout = REDIS_TIMEOUT_SECONDS
    return delayq
