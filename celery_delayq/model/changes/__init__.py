"""Changes of task messages that wait: arguments, priority, expiry and headers. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.saferepr import saferepr

from celery_delayq.errors import (
    ConfigError,
    InvalidLimit,
    InvalidOption,
    InvalidUnique,
    RecordError,
)
from celery_delayq.model import unique
from celery_delayq.model.changes.body import Body
from celery_delayq.model.compat.binding import check_arguments
from celery_delayq.model.envelope import LIMIT_FIELD, PROPERTY, lane_in, own_of, unique_key
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.model.names import is_by_name, renames_of
from celery_delayq.model.payload import READABLE_CONTENT_TYPES
from celery_delayq.model.task_options import CELERY_HEADERS
from celery_delayq.utils import message_json
from celery_delayq.utils.numbers import is_integer
from celery_delayq.utils.plain_repr import plain_repr
from celery_delayq.utils.text import is_utf8, percent

#: Headers that belong to Celery's message, and to the encoding of its body.
_RESERVED_HEADERS = CELERY_HEADERS | {"compression", "method"}


class Expiry(NamedTuple):
    """When a task expires: in ISO 8601, and in ms from the moment of the change."""

    text: str
    ms: int


class MessageChanges(NamedTuple):
    """Changes of one message; None for no change.

    Attributes
    ----------
    task : str | None
        The name of another task. The message gets its limit, and its name in the unique key.
    args, kwargs : Sequence[Any] | None, Mapping[str, Any] | None
        New arguments. They replace all positional, or all keyword arguments.
    priority : int | None
        New priority.
    expires : Expiry | bool | None
        New expiry; False for none.
    headers : Mapping[str, Any] | None
        Headers to set, by name. A header that is None is removed. Others stay.
    unpickle : bool
        Whether arguments are decoded that may run code of whoever wrote them.
    """

    task: str | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    priority: int | None = None
    expires: Expiry | bool | None = None
    headers: Mapping[str, Any] | None = None
    unpickle: bool = False

    @property
    def changes_arguments(self) -> bool:
        """Whether arguments are changed."""
        return self.args is not None or self.kwargs is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed."""
        return self._replace(unpickle=False) == MessageChanges()

    def check(self) -> MessageChanges:
        """Check the changes, and return them.

        Raises
        ------
        ConfigError
            The task, arguments or headers have a wrong type or name, or a header is no JSON.
        InvalidOption
            The priority is not in its range.
        """
        task, args, kwargs, priority = self.task, self.args, self.kwargs, self.priority
        if task is not None and not (isinstance(task, str) and task and is_utf8(task)):
            raise ConfigError(f"task={task!r}: expected the name of a task")
        if args is not None and not isinstance(args, (list, tuple)):
            raise ConfigError(f"args={args!r}: expected a list of arguments")
        if kwargs is not None and not is_by_name(kwargs):
            raise ConfigError(f"kwargs={kwargs!r}: expected arguments by name")
        if priority is not None and not is_integer(priority, 0, 255):
            raise InvalidOption(f"priority={priority!r}: expected a whole number, 0 to 9 on Redis")
        if self.headers is not None:
            self._check_headers(self.headers)
        return self

    def _check_headers(self, headers: Any) -> None:
        if not is_by_name(headers):
            raise ConfigError(f"headers={headers!r}: expected headers by name")
        if taken := sorted(_RESERVED_HEADERS & headers.keys()):
            raise ConfigError(
                f"headers={dict(headers)!r}: expected other names than {', '.join(taken)}, which "
                "belong to Celery"
            )
        for name, value in headers.items():
            try:
                message_json.encode({name: value})
            except (TypeError, ValueError, RecursionError) as exc:
                raise ConfigError(f"headers[{name!r}]={value!r}: expected JSON, {exc}") from exc


class MessageEditor:
    """Makes changes of messages with the tasks of an app.

    Parameters
    ----------
    app : Celery
        The app, for its limits and settings.
    changes : MessageChanges
        Checked changes.
    task_of : Callable[[str], Any]
        Returns the task of a name; None if this app does not know the task. The task says which
        arguments it takes, and which unique key follows from them.
    """

    def __init__(self, app: Celery, changes: MessageChanges, task_of: Callable[[str], Any]) -> None:
        self._app = app
        self._changes = changes
        self._task_of = task_of

    def edit(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a changed copy of a task message of protocol 2.

        Raises
        ------
        RecordError
            The arguments of the message cannot be decoded here.
        ConfigError
            The task does not take the new arguments, or they cannot be encoded.
        InvalidUnique, InvalidLimit
            The unique key or the key of the limit cannot be computed from the new arguments.
        """
        headers, properties = dict(message["headers"]), dict(message["properties"])
        changes = self._changes
        if changes.priority is not None:
            properties["priority"] = changes.priority
        if isinstance(changes.expires, Expiry):
            headers["expires"], ms = changes.expires
            properties["expiration"] = str(max(0, ms))
        elif changes.expires is False:
            headers["expires"] = None
            properties.pop("expiration", None)
        for name, value in (changes.headers or {}).items():
            if value is None:
                headers.pop(name, None)
            else:
                headers[name] = value
        edited = {**message, "headers": headers, "properties": properties}
        if changes.task is not None:
            edited = self._with_task(edited, changes.task)
        return self._with_arguments(edited) if changes.changes_arguments else edited

    def _with_task(self, message: dict[str, Any], name: str) -> dict[str, Any]:
        """Return a message of another task: with its limit, and its name in the unique key."""
        properties, headers = dict(message["properties"]), message["headers"]
        own = dict(own_of(properties))
        if key := unique_key(own):
            key = unique.renamed_key(key, headers["task"], name)
            own["unique"] = {"policy": "replace", **own.get("unique", {}), "key": key}
        if not self._changes.changes_arguments:  # these have their own lane
            self._move_to_lane_of_task(own, message, name)
        if own:
            properties[PROPERTY] = own
        return {**message, "headers": {**headers, "task": name}, "properties": properties}

    def _move_to_lane_of_task(
        self, own: dict[str, Any], message: Mapping[str, Any], name: str
    ) -> None:
        """Note the lane of another task with the arguments of the message."""
        task = self._task_of(name)
        limited = limits_of(self._app).of(name, task)
        if limited is None or limited.limit.key is None:
            self._move_to_lane(own, name, task, (), {})
            return
        try:
            body = Body.of(message, unpickle=self._changes.unpickle)
            self._move_to_lane(own, name, task, body.args, body.kwargs)
        except (RecordError, InvalidLimit) as exc:
            # The former task had the limit too: its key stays.
            if str(own.get(LIMIT_FIELD, "")).startswith(f"{percent(limited.limit.name)}:"):
                return
            raise InvalidLimit(f"{name}: the key of its limit cannot be computed: {exc}") from exc

    def _with_arguments(self, message: dict[str, Any]) -> dict[str, Any]:
        changes, headers = self._changes, message["headers"]
        renames = renames_of(self._app)
        former, name = headers["task"], renames.of(headers["task"])
        task = self._task_of(name)
        before = self._body_of(message)
        args = before.args if changes.args is None else tuple(changes.args)
        kwargs = before.kwargs if changes.kwargs is None else dict(changes.kwargs)
        check_arguments(name, task, args, kwargs, partial(_hint_of, changes))
        if dump := getattr(task, "_dump_pydantic_arguments", None):
            args, kwargs = dump(args, kwargs)  # models as dictionaries, as `apply_async` sends them
        own = dict(own_of(message["properties"]))
        if key := unique_key(own):
            key = unique.renamed_key(key, former, name)
            moved = _unique_key_of(key, name, task, before, args, kwargs)
            own["unique"] = {"policy": "replace", **own.get("unique", {}), "key": moved}
            if former_names := renames.former_names(name):
                own["unique"]["former_names"] = [*former_names]
        self._move_to_lane(own, name, task, args, kwargs)
        if own:
            message["properties"][PROPERTY] = own
        if changes.args is not None:
            size = self._app.amqp.argsrepr_maxsize
            self._describe(headers, "argsrepr", tuple(before.args), tuple(args), size)
        if changes.kwargs is not None:
            size = self._app.amqp.kwargsrepr_maxsize
            self._describe(headers, "kwargsrepr", before.kwargs, kwargs, size)
        return Body(args, kwargs, before.embedded).written_to(message)

    def _body_of(self, message: Mapping[str, Any]) -> Body:
        changes = self._changes
        try:
            return Body.of(message, unpickle=changes.unpickle)
        except RecordError:
            has_all = changes.args is not None and changes.kwargs is not None
            if has_all and message.get("content-type") in READABLE_CONTENT_TYPES:
                return Body((), {}, {})  # it is damaged: no worker could read what it has
            raise

    def _move_to_lane(
        self, own: dict[str, Any], name: str, task: Any, args: Sequence[Any], kwargs: Any
    ) -> None:
        """Note the lane of a task and its arguments.

        A message that was sent without a limit stays so, unless its task changes.
        """
        is_renamed = self._changes.task is not None
        if LIMIT_FIELD not in own and not is_renamed:
            return
        limited = limits_of(self._app).of(name, task)
        key = lane_in(str(own.get(LIMIT_FIELD, ""))).partition(":")[2]
        if limited is not None:
            own[LIMIT_FIELD] = limited.lane_of(args, kwargs)
        elif task is not None and is_renamed:
            own.pop(LIMIT_FIELD, None)
        elif task is None and key and self._changes.changes_arguments:
            raise InvalidLimit(
                f"{name}: it has a limit with a key, and this process does not know the task, so "
                "the key of other arguments cannot be computed; use an app with the task"
            )

    def _describe(
        self, headers: dict[str, Any], header: str, before: Any, after: Any, size: int
    ) -> None:
        """Set a header that shows the arguments to people."""
        if header not in headers:
            return
        levels = getattr(self._app.conf, "task_repr_maxlevels", 3)

        def shown(arguments: Any) -> str:
            return plain_repr(arguments, size) or saferepr(arguments, size, maxlevels=levels)

        # The sender may have hidden secrets.
        headers[header] = shown(after) if headers[header] == shown(before) else "…"


def _hint_of(changes: MessageChanges, detail: str) -> str:
    """Return a hint if an argument that stays has the name of a new one; else ``""``."""
    if not detail.startswith("multiple values"):
        return ""
    if changes.kwargs is None:
        return "; the named arguments stay unless kwargs={} (--kwargs '{}') is given, too"
    if changes.args is None:
        return "; the positional arguments stay unless args=[] (--args '[]') is given, too"
    return ""


def _unique_key_of(
    key: str, name: str, task: Any, before: Body, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Return the unique key of the new arguments, if *key* follows from the former arguments.

    A key that the call itself gave stays.
    """
    if task is None:
        raise InvalidUnique(
            f"{name}: it has a unique key, and this process does not know the task, so the key of "
            "other arguments cannot be computed; use an app with the task"
        )
    rule = unique.rule_of(name, task, unique.options_of(task, {}))
    if rule is None:
        return key
    try:
        of_arguments = rule.key_of(before.args, before.kwargs)
    except InvalidUnique:
        return key
    if key[1:] != of_arguments[1:]:
        return key
    return key[0] + rule.key_of(args, kwargs)[1:]  # the scope may be that of the call
