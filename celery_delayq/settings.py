"""Settings: ``broker_transport_options={"delayq": {...}}``, validated once and strictly.

>>> Settings.from_options({"delayq": {"dispatch_batch": 20}}).dispatch_batch
20

``msgspec`` does not check them: its errors show no value and suggest no name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_delayq.errors import ConfigError, NotSupported
from celery_delayq.utils.credentials import hide
from celery_delayq.utils.numbers import is_finite, is_integer
from celery_delayq.utils.text import similar_name


def _number(kind: str, default: Any, low: float, high: float) -> Any:
    """Declare a number in a range. *kind* is its name in errors."""
    bounds = {"low": low, "high": high, "expected": f"{kind} from {low:g} to {high:g}"}
    return field(default=default, metadata=bounds)


_whole, _seconds = partial(_number, "a whole number"), partial(_number, "a number of seconds")


def _text(default: str, pattern: str, expected: str) -> Any:
    """Declare a text that must match *pattern* completely."""
    return field(default=default, metadata={"pattern": pattern, "expected": expected})


def _only_on(broker: str, declared: Any) -> Any:
    """Declare a setting that only one kind of broker accepts: ``redis`` or ``amqp``."""
    if not isinstance(declared, Field):
        declared = field(default=declared)
    declared.metadata = MappingProxyType({**declared.metadata, "broker": broker})
    return declared


_on_redis, _on_rabbitmq = partial(_only_on, "redis"), partial(_only_on, "amqp")


class Hidden:
    """A text that is never shown. A worker sends its settings to every client that asks."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "'********'"

    def __json__(self) -> str:
        return "********"


class Limits(NamedTuple):
    """The limits of one queue. 0 means no limit.

    *archived*: dead letters are moved to a database, and none is dropped. *history*: the
    approximate number of kept runs of all queues. 0 means none.
    """

    promote_rate: float = 0.0
    max_ready: int = 0
    max_scheduled: int = 0
    dead_letters_age: float = 0.0
    dead_letters_max: int = 0
    archived: bool = False
    history: int = 0


#: Settings that a queue may override.
QUEUE_SETTINGS = (
    *("promote_rate", "max_ready", "max_scheduled"),
    *("dead_letters_age", "dead_letters_max"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The ``delayq`` settings. The defaults are right for most apps.

    Durations are in seconds. Kombu's own transport options (``global_keyprefix``,
    ``priority_steps``, ``socket_timeout``, …) stand beside ``delayq``, not in it.
    """

    #: Whether a process that consumes promotes due entries. A worker with ``DelayQ(app)`` then also
    #: fires periodic ones.
    dispatch: bool = _on_redis(True)

    #: Seconds between two looks at the schedule: the longest delay by a lost wake-up.
    dispatch_interval: float = _on_redis(_seconds(1.0, 0.01, 1.0))

    #: Most entries that one script call promotes. Above 50 it is 50, so that Redis is not blocked.
    dispatch_batch: int = _on_redis(_whole(50, 1, 1000))

    #: Seconds between two readings of the registry of queues and priority steps.
    registry_refresh: float = _on_redis(_seconds(30.0, 1.0, 3600.0))

    #: Shorter delays, in seconds, skip the schedule: a worker keeps the task in memory until it is
    #: due. Same in all processes.
    min_delay: float = _seconds(0.0, 0.0, 60.0)

    #: Seconds without a lease heartbeat after which others get the messages of a process.
    lease: float = _on_redis(_seconds(30.0, 1.0, 86_400.0))

    #: After this number of deaths of its worker a task is delivered alone; the next death makes it
    #: a dead letter. 0: no limit.
    max_deliveries: int = _whole(5, 0, 1_000_000)

    #: Seconds between two looks of an idle consumer at its ready lists. Below the default, the
    #: consumer polls and waits for no wake-up.
    block_timeout: float = _on_redis(_seconds(1.05, 0.01, 1.05))

    #: Replicas that must have a message before a publish returns (``WAIT``), else it raises
    #: ``NotReplicated``.
    wait_replicas: int = _on_redis(_whole(0, 0, 100))

    #: Seconds to wait for these replicas.
    wait_timeout: float = _on_redis(_seconds(1.0, 0.01, 60.0))

    #: Most entries of a queue that become ready per second. 0: no limit.
    promote_rate: float = _on_redis(_number("a number", 0.0, 0.0, 1_000_000.0))

    #: Most ready messages of a queue; others stay scheduled. 0: no limit.
    max_ready: int = _on_redis(_whole(0, 0, 1_000_000_000))

    #: Most scheduled entries of a queue; others raise ``QueueFull``. 0: no limit.
    max_scheduled: int = _on_redis(_whole(0, 0, 1_000_000_000))

    #: Whether tasks that failed for good become dead letters. Rejected messages always do.
    dead_letters: bool = True

    #: Seconds for which dead letters are kept. 0: forever.
    dead_letters_age: float = _seconds(7_776_000.0, 0.0, 3_153_600_000.0)

    #: Most dead letters of a queue; the oldest are dropped. 0: no limit.
    dead_letters_max: int = _on_redis(_whole(100_000, 0, 1_000_000_000))

    #: SQLAlchemy URL of the database to which workers move dead letters.
    dead_letters_archive: str = _on_redis(field(default="", repr=False))

    #: Age of dead letters, in seconds, at which workers move them.
    dead_letters_archive_after: float = _on_redis(_seconds(3600.0, 0.0, 3_153_600_000.0))

    #: Kept runs of all queues, about; the oldest are dropped. 0: none.
    history: int = _on_redis(_whole(0, 0, 100_000_000))

    #: Absolute path of a file that the worker's loop touches every 1 to 10 s, for liveness probes.
    #: With Celery's ``%n`` (node), ``%h`` (node and host), ``%d`` (domain).
    liveness_file: str = _text("", r"|/[^\0]*[^/\0]", "the absolute path of a file")

    #: Seconds for which Redis remembers a revoked id.
    revoke_expires: float = _on_redis(_seconds(86_400.0, 1.0, 31_536_000.0))

    #: Redis Cluster: hash tags over which queues are spread. It cannot change later.
    cluster_tags: int = _on_redis(_whole(12, 1, 1024))

    #: RabbitMQ: the step of delays, and the shortest delay, in seconds.
    unit: float = _on_rabbitmq(_seconds(0.025, 0.005, 60.0))

    #: RabbitMQ: longest delay, in seconds; longer ones are refused. 0: 4^16 - 1 units, 3.4 years
    #: with the default unit.
    max_delay: float = _on_rabbitmq(_seconds(0.0, 0.0, 3_153_600_000.0))

    #: RabbitMQ: first word of the names of this package's exchanges and queues.
    prefix: str = _on_rabbitmq(
        _text(
            "delayq",
            r"(?!amq\.)[A-Za-z0-9_.-]{1,40}",
            "up to 40 letters, digits, '_', '.' or '-', and not 'amq.' first",
        )
    )

    #: RabbitMQ: type of the delay queues: ``quorum`` or ``classic``.
    queue_type: str = _on_rabbitmq(_text("quorum", "quorum|classic", "'quorum' or 'classic'"))

    #: RabbitMQ: most messages of one delay queue; a full one refuses. 0: no limit.
    max_length: int = _on_rabbitmq(_whole(0, 0, 1_000_000_000))

    #: RabbitMQ: whether to declare exchanges and queues, or only to check them.
    declare: bool = _on_rabbitmq(True)

    #: ``promote_rate``, ``max_ready``, ``max_scheduled``, ``dead_letters_age``,
    #: ``dead_letters_max`` by queue: ``{"mail": {"max_ready": 100}}``.
    queues: Mapping[str, Limits] = _on_redis(field(default_factory=dict, hash=False))

    def limits(self, queue: str) -> Limits:
        """Return the limits of a queue."""
        return self.queues.get(queue) or Limits(
            self.promote_rate,
            self.max_ready,
            self.max_scheduled,
            self.dead_letters_age,
            self.dead_letters_max,
            bool(self.dead_letters_archive),
            self.history,
        )

    @classmethod
    def from_options(
        cls, transport_options: Mapping[str, Any] | None, refused_names: Collection[str] = ()
    ) -> Settings:
        """Read the ``delayq`` part of *transport_options*.

        Parameters
        ----------
        refused_names : Collection[str]
            Settings that only another broker accepts, :data:`ON_REDIS` or :data:`ON_RABBITMQ`.

        Raises
        ------
        ConfigError
            A name is unknown (the message lists the valid names), or a value has a wrong type or is
            out of range.
        NotSupported
            One of *refused_names* is set.
        """
        given = (transport_options or {}).get("delayq", {})
        known = [f.name for f in fields(cls)]
        valid = [name for name in known if name not in refused_names]
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"broker_transport_options['delayq'] is {hide(given)}; it must be a mapping "
                f"with some of: {', '.join(valid)}"
            )
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            close = [each for name in unknown if (each := similar_name(name, valid, 0.7))]
            meant = f" (did you mean {', '.join(close)}?)" if close else ""
            raise ConfigError(
                f"unknown delayq setting(s): {', '.join(unknown)}{meant}; "
                f"valid are: {', '.join(valid)}"
            )
        if wrong := [name for name in given if name in refused_names]:
            broker, this = ("redis", "amqp") if refused_names is ON_REDIS else ("amqp", "redis")
            raise NotSupported(
                f"delayq setting(s) {', '.join(wrong)}: only for a broker delayq+{broker}://, and "
                f"this one is {this}"
            )
        values = {name: _checked(name, name, given[name]) for name in given if name != "queues"}
        settings = cls(**values)
        queues = given.get("queues", {})
        if not isinstance(queues, Mapping):
            raise ConfigError(
                f"delayq setting queues is {hide(queues)}: expected a mapping of queue names to "
                "limits, such as {'mail': {'max_ready': 1000}}"
            )
        own = {name: _limits(settings, name, limits) for name, limits in queues.items()}
        return replace(settings, queues=own)


#: Settings for one kind of broker only. The other kind refuses them.
ON_REDIS, ON_RABBITMQ = (
    tuple(each.name for each in fields(Settings) if each.metadata.get("broker") == broker)
    for broker in ("redis", "amqp")
)


def misplaced_option_warnings(
    transport_options: Mapping[str, Any] | None, kombu_options: Collection[str]
) -> list[str]:
    """Return a warning for each transport option that probably belongs into ``delayq``.

    Options that are not in *kombu_options* either are ignored, because a newer kombu may know them.
    """
    names = [field.name for field in fields(Settings)]
    warnings = []
    for name, value in (transport_options or {}).items():
        if not isinstance(name, str) or name == "delayq" or name in kombu_options:
            continue
        ours = isinstance(value, Mapping) and any(
            similar_name(str(each), names, 0.85) for each in value
        )
        if ours and similar_name(re.sub("[_-]", "", name), ["delayq"], 0.8):
            meant = "'delayq'"
        elif own := similar_name(name, names, 0.85):
            meant = f"['delayq'][{own!r}]"
        else:
            continue
        warnings.append(
            f"broker_transport_options[{name!r}] has no effect; did you mean {meant}? Our settings "
            "stand in broker_transport_options['delayq']"
        )
    return warnings


def _limits(settings: Settings, queue: str, given: Any) -> Limits:
    """Return the limits of one queue. Limits that are not given are the general ones."""
    if not isinstance(given, Mapping) or not set(given) <= set(QUEUE_SETTINGS):
        # Only names, because a value may be a URL with a password.
        problem = f"is {hide(given)}"
        if isinstance(given, Mapping):
            problem = f"has {', '.join(sorted({*map(str, given)} - {*QUEUE_SETTINGS}))}"
        raise ConfigError(
            f"delayq setting queues[{queue!r}] {problem}: expected a mapping with some of "
            f"{', '.join(QUEUE_SETTINGS)}"
        )
    values = {
        name: _checked(name, f"queues[{queue!r}]: {name}", value) for name, value in given.items()
    }
    return settings.limits(queue)._replace(**values)


def _checked(setting: str, name: str, value: Any) -> Any:
    """Return the value of a setting with the type of its default. Errors show *name*."""
    declared = Settings.__dataclass_fields__[setting]
    default, bounds = declared.default, declared.metadata
    if isinstance(default, bool):
        expected, is_valid = "True or False", isinstance(value, bool)
    elif "pattern" in bounds:
        expected = bounds["expected"]
        is_valid = isinstance(value, str) and bool(re.fullmatch(bounds["pattern"], value))
    elif isinstance(default, str):
        return _url(name, value.text if isinstance(value, Hidden) else value)
    else:
        expected = bounds["expected"]
        is_in_range = is_integer if isinstance(default, int) else is_finite
        is_valid = is_in_range(value, bounds["low"], bounds["high"])
    if not is_valid:
        raise ConfigError(f"delayq setting {name}={_shown_value(value)}: expected {expected}")
    return float(value) if isinstance(default, float) else value


def _shown_value(value: Any) -> str:
    """Return a value for an error message, without the password of a URL."""
    return hide(value) if isinstance(value, (str, bytes)) else repr(value)


def _url(name: str, value: Any) -> str:
    """Return a URL or "". Errors do not show the URL, because it may have a password."""
    if isinstance(value, str) and (not value or "://" in value):
        return value
    got = "a text that is none" if isinstance(value, str) else type(value).__name__
    raise ConfigError(
        f"delayq setting {name}: expected a URL such as 'sqlite:////var/lib/shop/dead.db' or "
        f"'postgresql://shop@db/shop', got {got}"
    )
