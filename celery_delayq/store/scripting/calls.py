"""Script calls as objects, so that calls can be sent together."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeVar

from celery_delayq.model.envelope import Due, Entry, may_have_limit
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.scripts import LIMITS, Script, load
from celery_delayq.utils.portions import MAX_CALL_BYTES

T = TypeVar("T")

#: Most messages of one script call: more would block Redis for longer.
MAX_CALL_MESSAGES = 50


@dataclass(slots=True)
class Call:
    """One script call: the name of the script, its KEYS and ARGV."""

    name: str
    keys: list[Any]
    args: list[Any]

    @classmethod
    def of(
        cls,
        keys: Keys,
        name: str,
        queue: str | None,
        args: Iterable[Any] = (),
        *,
        layout: Layout | None = None,
        more: Iterable[Any] = (),
        **given: Hashable,
    ) -> Call:
        """Return a call with the KEYS that the script's header names.

        Parameters
        ----------
        queue, layout, given
            See :func:`keys_of`.
        args : Iterable[Any]
            ARGV.
        more : Iterable[Any]
            The KEYS of the last name in the header, which ends with ``…``.
        """
        return cls(name, [*keys_of(name, keys, queue, layout, **given), *more], [*args])

    @property
    def script(self) -> Script:
        """The script."""
        return load(self.name)

    def command(self, *, source: bool = False) -> tuple[Any, ...]:
        """Return the call as a command; with *source*, for a server that may lack the script."""
        return (*_how(self.script, source), len(self.keys), *self.keys, *self.args)

    def packed(self, *, source: bool = False) -> bytes:
        """Return the call as :func:`pack` does. Repeated KEYS take a third of the time."""
        if source:
            return pack([self.command(source=True)])
        count = 3 + len(self.keys) + len(self.args)
        return b"*%d\r\n" % count + _packed_head(self.name, *self.keys) + _packed(self.args)


@dataclass(slots=True)
class Command:
    """A command other than a script call: its name and arguments."""

    args: tuple[Any, ...]

    @classmethod
    def of(cls, *args: Any) -> Command:
        """Return the command with these parts."""
        return cls(args)

    def command(self, *, source: bool = False) -> tuple[Any, ...]:  # noqa: ARG002, as for a script
        """Return the name and arguments."""
        return self.args


# Looking up names takes longer than all else in a call.
@lru_cache(maxsize=4096)
def keys_of(
    script: str,
    keys: Keys,
    queue: str | None,
    layout: Layout | None = None,
    **given: Hashable,
) -> tuple[Any, ...]:
    """Return the KEYS that the header of a script names.

    Parameters
    ----------
    queue : str | None
        The queue of the keys; None for a script that needs no key of a queue.
    layout : Layout | None
        The layout of the key ``ready_lists…``; None to leave the list of these keys open.
    given : Hashable
        By their names in the header: keys that are no attributes of
        :class:`~celery_delayq.store.keys.QueueKeys` or :class:`~celery_delayq.store.keys.Keys`, or
        not of this queue. For the name of a method of these classes, such as ``leased``: its
        argument.

    Raises
    ------
    TypeError
        A key is missing, or the header does not have its name.
    """
    names = _key_names(script)
    if unknown := given.keys() - set(names):
        raise TypeError(f"{script} has no keys {', '.join(sorted(unknown))}")
    found = {name: _key(name, keys, queue, given) for name in names}
    if missing := [name for name, key in found.items() if not isinstance(key, (str, bytes))]:
        raise TypeError(f"a call of {script} needs the keys {', '.join(missing)}")
    lists = () if queue is None or layout is None else keys.ready_lists(queue, layout)
    return (*found.values(), *lists)


@cache
def _key_names(script: str) -> list[str]:
    """Return the names of the KEYS, without the name that stands for all further KEYS."""
    header = load(script).header
    return [name for name in header.keys if name != f"{header.open_key}…"]


def _key(name: str, keys: Keys, queue: str | None, given: Mapping[str, Any]) -> Any:
    """Return the key with a name in a header: of the queue, shared or given."""
    found = None if queue is None else getattr(keys.queue(queue), name, None)
    found = getattr(keys, name, None) if found is None else found
    if name not in given:
        return found
    return found(given[name]) if callable(found) else given[name]


#: The calls of one queue, as a generator. Each call may depend on the former reply. The calls of
#: many queues are sent together. The generator yields one call and receives the reply, or yields a
#: list of calls and receives a list, in which a refusal is a reply too. It returns the result.
Steps: TypeAlias = Generator[Call | Command | Sequence[Call | Command], Any, T]


def pack(commands: Iterable[tuple[Any, ...]]) -> bytes:
    """Return commands in Redis' protocol, in a third of redis-py's time."""
    return b"".join([b"*%d\r\n" % len(command) + _packed(command) for command in commands])


def pack_command(name: str, args: Sequence[bytes]) -> bytes:
    """Return a command in Redis' protocol, from arguments packed by :func:`pack_arg`."""
    return b"*%d\r\n%b" % (1 + len(args), pack_arg(name)) + b"".join(args)


def pack_keys(name: str, keys: Sequence[bytes]) -> bytes:
    """Return a script call with source and without ARGV, from KEYS packed by :func:`pack_arg`."""
    head = _packed((*_how(load(name), source=True), len(keys)))
    return b"*%d\r\n%b" % (3 + len(keys), head) + b"".join(keys)


def pack_arg(arg: Any) -> bytes:
    """Return one argument in Redis' protocol."""
    return _packed((arg,))


def _how(script: Script, source: bool) -> tuple[str, str]:
    return ("EVAL", script.source) if source else ("EVALSHA", script.sha)


def _packed(args: Iterable[Any]) -> bytes:
    parts = []
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


@lru_cache(maxsize=2048)
def _packed_head(name: str, *keys: str | bytes) -> bytes:
    return _packed(("EVALSHA", load(name).sha, len(keys), *keys))


def forget_packed() -> None:
    """Forget packed calls: scripts have other variants from now on."""
    _packed_head.cache_clear()


@dataclass(slots=True)
class _Growing(Call):
    """A call to which messages are added.

    ``keys`` and ``args`` are flat lists: a tuple for each message would start the garbage collector
    often.
    """

    names: Keys
    queue: str
    layout: Layout
    size: int = 0
    bytes: int = 0
    _lists: dict[int, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether another message must go into the next call."""
        return self.size >= MAX_CALL_MESSAGES or self.bytes >= MAX_CALL_BYTES

    def _list(self, step: int) -> int:
        """Return the number in KEYS of the ready list of a priority step."""
        number = self._lists.get(step)
        if number is None:
            self.keys.append(self.names.ready(self.queue, step, self.layout))
            number = self._lists[step] = len(self.keys)
        self.size += 1
        return number


def due_argument(due: Due) -> int | str:
    """Return a due as an argument of a script. An elapsed countdown is due at once."""
    if not due.relative:
        return due.ms
    return f"+{due.ms}" if due.ms > 0 else 0


@dataclass(slots=True)
class EntriesCall(_Growing):
    """A call of ``schedule/add.lua``, or of a script like this, to which entries are added.

    A message with a unique key adds all lists of ready messages of the queue. With them the script
    can check whether any message is ready: if none is, a stock worker has taken the message of a
    unique key, and the key is free. A message of a task with a limit needs the variant of the
    script that may hold the message.
    """

    _has_all_lists: bool = False
    _has_limits: bool = False

    def add(self, entry: Entry) -> None:
        """Add a message."""
        id, due, step, data, policy = entry
        number = self._list(step)
        if policy and not self._has_all_lists:
            self._add_all_lists()
        if not self._has_limits and may_have_limit(data):
            self.name, self._has_limits = self.name + LIMITS, True
        self.bytes += len(data)
        self.args += id, due_argument(due), number, data, policy

    def _add_all_lists(self) -> None:
        quarantined = self.names.queue(self.queue).quarantined
        lists = quarantined, *self.names.ready_lists(self.queue, self.layout)
        self.keys += [name for name in lists if name not in self.keys]
        self._has_all_lists = True

    @property
    def ids(self) -> list[str]:
        """The ids of the entries."""
        return self.args[4::5]

    @property
    def records(self) -> list[bytes]:
        """The records of the entries."""
        return self.args[7::5]


@dataclass(slots=True)
class ReadyCall(_Growing):
    """A call of ``schedule/push_ready.lua`` to which messages are added."""

    def add(self, step: int, message: bytes, is_task: bool = True) -> None:
        """Add a message."""
        self.bytes += len(message)
        self.args[0] += is_task
        self.args += self._list(step), message
