"""Store the results of many tasks in Celery's Redis backend in two round trips.

Celery reads and writes the result of each task alone: two round trips for a task. Here Celery's own
code works on a client that has the former results already, and that collects the writes. All
results of a batch have one time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery.backends.redis import RedisBackend

from celery_delayq.store.scripting.calls import pack
from celery_delayq.store.scripting.replies import answered
from celery_delayq.store.scripting.wire import Wire

#: Methods of Celery's backend that read and write a result. With a method of its own, a backend may
#: do more than this module knows.
_METHODS = ("get", "mget", "set", "_set", "ensure", "_store_result", "_get_task_meta_for")


@contextmanager
def stores_together(backend: Any, task_ids: Sequence[str]) -> Iterator[Any]:
    """Yield a backend that stores the results of some tasks at the end of the block, together.

    This is *backend* itself, which stores each result at once, for one task and for other backends
    than Celery's Redis backend.

    Parameters
    ----------
    task_ids : Sequence[str]
        The tasks whose results are stored in the block.

    Raises
    ------
    redis.exceptions.RedisError
        The backend is away.
    """
    if len(task_ids) < 2 or not _is_of_celery(backend):
        yield backend
        return
    keys = {id: backend.get_key_for_task(id) for id in task_ids}
    found = dict(zip(keys.values(), backend.mget([*keys.values()]), strict=True))
    client, now = _Collected(found), backend.app.now()
    app = _changed(backend.app, now=lambda: now)
    together = _changed(backend, app=app, client=client, ensure=_call)
    together.get_key_for_task = keys.__getitem__
    together.prepare_exception = _Prepared(backend)

    def write() -> None:
        wire = Wire(backend.client.connection_pool)
        try:
            wire.send(pack(client.commands), len(client.commands))
            answered(wire.read_all())
        finally:
            wire.close()

    try:
        yield together
    finally:
        if client.commands:
            backend.ensure(write, ())


def _is_of_celery(backend: Any) -> bool:
    """Return whether a backend stores results as Celery's Redis backend does."""
    kind = type(backend)
    if not isinstance(backend, RedisBackend) or backend.always_retry:
        return False
    return "mark_as_revoked" not in backend.__dict__ and all(
        getattr(kind, name) is getattr(RedisBackend, name) for name in _METHODS
    )


def _changed(given: Any, **attributes: Any) -> Any:
    """Return an object as *given*, with other attributes."""
    changed = object.__new__(type(given))
    changed.__dict__.update(given.__dict__, **attributes)
    return changed


def _call(function: Callable[..., Any], args: Sequence[Any], **_policy: Any) -> Any:
    """Call a function that does no I/O, without retries."""
    return function(*args)


class _Prepared(dict[tuple[Any, ...], Any]):
    """The prepared exceptions of a batch by class and arguments, which most tasks share."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __call__(self, exc: Exception, serializer: str | None = None) -> Any:
        """Return an exception as a backend stores it."""
        key = type(exc), exc.args, serializer
        if key not in self:
            self[key] = self._backend.prepare_exception(exc, serializer)
        return self[key]


class _Collected:
    """Stands for the client of a backend, and for the pipelines of this client.

    Parameters
    ----------
    found : Mapping[Any, Any]
        The former results by key.

    Attributes
    ----------
    commands : list[tuple[Any, ...]]
        The collected writes.
    """

    def __init__(self, found: Mapping[Any, Any]) -> None:
        self._found = found
        self.commands: list[tuple[Any, ...]] = []
        self.set = partial(self._add, "SET")
        self.setex = partial(self._add, "SETEX")
        self.publish = partial(self._add, "PUBLISH")

    def _add(self, *command: Any) -> None:
        self.commands.append(command)

    def get(self, key: Any) -> Any:
        """Return the former result."""
        return self._found[key]

    def pipeline(self) -> _Collected:
        """Return the pipeline that collects all writes."""
        return self

    def __enter__(self) -> _Collected:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self) -> None:
        """Leave the writes to the end of the block."""
