"""Compute three headers of a task's message faster.

Celery computes ``argsrepr`` and ``kwargsrepr`` with its ``saferepr``, even where ``repr`` gives
the same text. It also builds the name of this process again for each message. Benchmark row:
``fast-headers``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from celery.utils.nodenames import anon_nodename

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace
from celery_delayq.utils.plain_repr import plain_repr

#: Celery's name of this process, which contains the pid.
_origin = cache(anon_nodename)
os.register_at_fork(after_in_child=_origin.cache_clear)


def compute_headers(_owner: type, create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``as_task_v2``: pass the headers that can be computed faster."""

    def as_task_v2(
        factory: Any,
        task_id: str,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if options.get("argsrepr") is None:
            options["argsrepr"] = plain_repr(args or (), factory.argsrepr_maxsize)
        if options.get("kwargsrepr") is None:
            options["kwargsrepr"] = plain_repr(kwargs or {}, factory.kwargsrepr_maxsize)
        if not options.get("origin"):
            options["origin"] = _origin()
        return create(factory, task_id, name, args, kwargs, *rest, **options)

    return as_task_v2


GROUP = Group(
    name="headers",
    process=(
        Replace(
            target="celery.app.amqp:AMQP.as_task_v2",
            by=compute_headers,
            without="Celery spends a tenth of the time of a publish on the texts of simple "
            "arguments.",
        ),
    ),
    upstream="celery: have `saferepr` return `repr(o)` for flat tuples, lists and dictionaries of "
    "simple values whose text is short and has no quote or backslash, and cache `anon_nodename` "
    "per process.",
)
