"""Carry bound values and traces in messages, and bind them again around the handler.

Values travel as one text in our message property. Celery does not copy the property to other
messages: the children of a task get the values that are bound while the task runs, and its retry
gets the values of its message. A trace travels in headers, see
:mod:`~celery_delayq.model.context.trace_context`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

from celery import Celery
from celery._state import get_current_task

from celery_delayq.errors import ConfigError, InvalidContext
from celery_delayq.integration.replace import Connect, Promise, Replace, make
from celery_delayq.model.context import (
    NO_VALUES,
    RECORD_ATTRIBUTE,
    Binding,
    ContextChange,
    EncodedContext,
    bound,
    current_context,
    enter,
    leave,
    owned_by,
    piece,
    read,
    trace_context,
)
from celery_delayq.model.context.trace_context import Trace
from celery_delayq.model.envelope import PROPERTY
from celery_delayq.utils.delegation import methods_name_arguments

logger = logging.getLogger(__name__)

#: Name of our option of a call.
CONTEXT_OPTION = "context"

#: Name of the values in our message property.
CONTEXT_FIELD = "context"

#: Attribute of an app with its providers, so that all its extension objects share them.
_PROVIDERS = "_delayq_context_providers"


class Provider(NamedTuple):
    """A provider: captures a value when a task is sent, and binds the value in the worker."""

    capture: Callable[[], Any]
    bind: Callable[[Any], AbstractContextManager[Any]] | None


class Sent(NamedTuple):
    """The context of one message: values as JSON text (``""`` for no values), and a trace."""

    text: str
    trace: Trace | None


# -- sending --------------------------------------------------------------------------------------


def to_send(app: Celery, given: Any = None, request: Any = None) -> Sent | None:
    """Return the context of a message that is sent now, or None.

    Parameters
    ----------
    given : Mapping[str, Any] | False | None
        The option of the call: values that override the bound values, or False for no context.
    request : celery.app.task.Context | None
        The running task if the message is its retry. A retry keeps the context of the task.

    Raises
    ------
    InvalidContext
        The option has a wrong type, or its values are invalid.
    """
    if given is False:
        return None
    state = bound() if request is None else owned_by(request)
    span = trace_context.of_opentelemetry() if request is None else None
    providers = None if request is not None else app.__dict__.get(_PROVIDERS)
    if given is None and not providers:
        if state is not None:
            return Sent(state.encoded.text, span or state.trace)
        return None if span is None else Sent("", span)
    encoded = NO_VALUES if state is None else state.encoded
    trace = span or (None if state is None else state.trace)
    if providers:
        encoded = _captured(providers, encoded)
    if given is not None:
        if type(given) is not dict and not isinstance(given, Mapping):
            raise InvalidContext(
                f"context={given!r}: expected a mapping such as {{'user': 'ada'}}, or False to "
                "send nothing of what is bound"
            )
        if names := app.__dict__.get(_PROVIDERS):
            _refuse_provided(names, given)
        encoded, trace = ContextChange(given).over(encoded, trace)
    return Sent(encoded.text, trace) if encoded.text or trace is not None else None


def carry(app: Celery, name: str, message: Any, options: dict[str, Any]) -> None:
    """Remove our option from the options of a call, and put the context into the message.

    Raises
    ------
    InvalidContext
        The option is invalid.
    ConfigError
        The option is set, but the message has protocol 1.
    """
    given = options.pop(CONTEXT_OPTION, None)
    if type(given) is Sent:  # from `schedule_many`, which builds its messages itself
        sent: Sent | None = given
    else:
        sent = to_send(app, given, request_retried_by(message.headers))
    if not isinstance(message.body, tuple):  # protocol 1
        if given:
            raise ConfigError(f"{name}: {CONTEXT_OPTION} needs task_protocol 2")
        return
    if sent is None:
        return
    if sent.text:
        message.properties.setdefault(PROPERTY, {})[CONTEXT_FIELD] = sent.text
    if sent.trace is not None and trace_context.PARENT not in (options.get("headers") or ()):
        message.headers.update(sent.trace.as_headers())


def request_retried_by(headers: Mapping[str, Any]) -> Any:
    """Return the request of the running task if a message is its retry, else None."""
    running = get_current_task() if headers.get("retries") else None
    request = None if running is None else running.request
    if request is None or request.id != headers["id"] or request.retries + 1 != headers["retries"]:
        return None
    return request


def _captured(providers: Mapping[str, Provider], encoded: EncodedContext) -> EncodedContext:
    """Return *encoded* with the values of the providers. A failing one loses only its value."""
    for name, (capture, bind) in providers.items():
        try:
            value = capture()
            if value is not None:
                encoded = EncodedContext.of({**encoded.pieces, name: piece(name, value)})
            elif bind is not None and name in encoded.pieces:
                # In a worker: the provider bound this value, and no longer has one.
                encoded = EncodedContext.of(
                    {n: text for n, text in encoded.pieces.items() if n != name}
                )
        except Exception:
            logger.exception("The context provider %r failed; a task is sent without it", name)
    return encoded


# -- running --------------------------------------------------------------------------------------


def bind_context(task: Any, **_: Any) -> None:
    """Bind the context of a task's message, and nothing else, around its handler."""
    request = task.request
    if request.is_eager:  # the task runs in its caller, whose context is still bound
        return
    own = (request.get("properties") or {}).get(PROPERTY)
    given = own.get(CONTEXT_FIELD) if isinstance(own, dict) else None
    trace = Trace.of(vars(request))
    before = bound()
    if given is None and trace is None and before is None:
        return
    # Remove the context of a task without `task_postrun`, such as an interrupted task.
    while before is not None:
        if isinstance(before.owner, type(request)):
            leave(before.owner)
        before = before.outer
    encoded = NO_VALUES
    if given is not None:
        try:
            encoded = read(given)
        except InvalidContext as exc:
            logger.warning(
                "Task %s[%r] came with a context that cannot be read, and runs without: %s",
                task.name,
                request.id,
                exc,
            )
    make((CONTEXT_CHANGE,))
    providers = task.app.__dict__.get(_PROVIDERS) or {}
    binders = {
        name: bind
        for name, (_, bind) in providers.items()
        if bind is not None and name in encoded.pieces
    }
    if not binders:
        enter(request, encoded, trace)
        return
    exits = ExitStack()
    enter(request, encoded, trace, exits.close)
    values = current_context()
    for name, bind in binders.items():
        try:
            manager = bind(values[name])
            manager.__enter__()
        except Exception:
            logger.exception("The context provider %r failed; a task runs without it", name)
        else:
            exits.push(_guarded(name, manager))


def unbind_context(task: Any, **_: Any) -> None:
    """Unbind the context of :func:`bind_context`, and every context that the handler left bound."""
    if bound() is not None:
        leave(task.request)


CONTEXT_CHANGE = Connect(
    target="signals.task_postrun",
    receiver=unbind_context,
    without="The context stays bound after the task. The change is made late, because a receiver of"
    " this signal costs time for each task.",
    promise=Promise.CONTEXT,
)


def _guarded(name: str, manager: AbstractContextManager[Any]) -> Callable[..., None]:
    """Return the exit function of a provider's context manager. Its errors are logged."""

    def leave_guarded(*exc_info: Any) -> None:
        try:
            manager.__exit__(*exc_info)
        except Exception:
            logger.exception("The context provider %r failed at the end of a task", name)

    return leave_guarded


# -- log records ----------------------------------------------------------------------------------


def add_context(
    _logging: Any, before: Callable[..., logging.LogRecord]
) -> Callable[..., logging.LogRecord]:
    """Wrap a factory of log records: each record gets the bound values as text."""

    def with_context(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        state = bound()
        record.delayq_context = "" if state is None else state.line
        return record

    return with_context


def lacks_context(_logging: Any) -> bool:
    """Return whether log records have no context: our factory may be wrapped or replaced."""
    factory = logging.getLogRecordFactory()
    return not hasattr(factory(__name__, logging.DEBUG, "", 0, "", (), None), RECORD_ATTRIBUTE)


LOG_RECORDS = Replace(
    target="logging:_logRecordFactory",
    by=add_context,
    when=lacks_context,
    condition="unless records have it already",
    without="Log lines of a task do not show its context.",
    promise=Promise.CONTEXT,
)


# -- the extension --------------------------------------------------------------------------------


def _refuse_provided(providers: Mapping[str, Provider], values: Mapping[str, Any]) -> None:
    taken = sorted(providers.keys() & values.keys())
    if taken:
        raise InvalidContext(
            f"context {', '.join(taken)}: what a context provider of that name captures would be "
            "lost; expected another name"
        )


@methods_name_arguments
class ContextValues:
    """The context of the tasks of one app."""

    def __init__(self) -> None:
        self._providers: dict[str, Provider] = {}

    def share(self, app: Celery) -> None:
        """Add the own providers to the providers of *app*, and use the result."""
        known: dict[str, Provider] = app.__dict__.setdefault(_PROVIDERS, self._providers)
        known.update(self._providers)
        self._providers = known

    def context(self, /, **values: Any) -> Binding:
        """Bind values to all tasks that are sent inside the block or the decorated function.

        See :func:`.model.context.context`.

        Raises
        ------
        InvalidContext
            A value is not JSON or too large, a name is invalid, or a provider has the name.
        """
        _refuse_provided(self._providers, values)
        return Binding(values)

    def current_context(self) -> Mapping[str, Any]:
        """Return the bound values by name; inside a task, the values it was sent with."""
        return current_context()

    def add_context_provider(
        self,
        name: str,
        capture: Callable[[], Any],
        bind: Callable[[Any], AbstractContextManager[Any]] | None = None,
    ) -> None:
        """Send a value of your own with every task of this app.

        Errors of a provider are logged; they stop neither sending nor the task.

        Parameters
        ----------
        name : str
            The key in ``current_context()``.
        capture : Callable[[], Any]
            Called when a task is sent. Returns a JSON value, or None to send no value. Retries
            keep the first value.
        bind : Callable[[Any], AbstractContextManager] | None
            Called in the worker with the value. Returns a context manager that is entered around
            the handler. Without *bind* the value is only bound under its name. Do not trust the
            value: anybody with access to the broker can write it.

        Raises
        ------
        ConfigError
            The name is taken or invalid, or *capture* or *bind* is not callable.
        """
        try:
            ContextChange({name: ""})
        except InvalidContext as exc:
            raise ConfigError(f"add_context_provider({name!r}, …): {exc}") from exc
        if name in (trace_context.PARENT, trace_context.STATE):
            raise ConfigError(f"add_context_provider({name!r}, …): that is a header of its own")
        if name in self._providers:
            raise ConfigError(f"there is a context provider {name!r} already; give another name")
        if not callable(capture) or not (bind is None or callable(bind)):
            raise ConfigError(
                f"add_context_provider({name!r}, {capture!r}, {bind!r}): expected a function that "
                "returns the value, and one that takes it and returns a context manager, or None"
            )
        self._providers[name] = Provider(capture, bind)
