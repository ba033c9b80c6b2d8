"""Every exception of the package. Each message says what is wrong and what is expected."""

from __future__ import annotations

from kombu.exceptions import OperationalError


class DelayQError(Exception):
    """Base class of all exceptions that this package raises on purpose."""

    # Not the ``__repr__`` of redis-py 8: it leaves out the message, and fails for an OSError.
    __repr__ = Exception.__repr__


class ConfigError(DelayQError, ValueError):
    """A ``delayq`` setting, a broker URL or an argument is unknown, ill-typed or out of range."""


class NotSupported(ConfigError):
    """The app's broker does not support the operation."""


class PeriodicExists(ConfigError):
    """A periodic entry of this name exists already."""


class PeriodicUnknown(DelayQError, LookupError):
    """There is no periodic entry of this name."""


class InvalidETA(DelayQError, ValueError):
    """An ``eta`` or ``countdown`` is not a time that can be stored."""


class InvalidOption(DelayQError, ValueError):
    """An option of a call, such as ``time_limit``, is invalid and would break a worker."""


class RecordError(DelayQError, ValueError):
    """This version cannot read a record in Redis."""


class UnsupportedServer(DelayQError, OperationalError):
    """The server is too old: Redis 6.2 or RabbitMQ 3.10 is required."""


class BrokerUnavailable(DelayQError, OperationalError, ConnectionError):
    """The broker cannot be reached, has disconnected, refuses the login, or is not a master."""


class BrokerTimeout(BrokerUnavailable):
    """The broker did not answer in time. Whether the command was executed is unknown."""


class BrokerBlocked(DelayQError, OperationalError):
    """RabbitMQ is low on memory or disk and has not confirmed a task. The task may run later."""


class CommandRefused(DelayQError):
    """Redis refused a command: no permission, a key of another type, or an error in a script."""


class EarlierLayout(DelayQError, OperationalError):
    """The database has keys of a version before 0.1.0 that this version cannot read."""


class StoreFull(DelayQError, OperationalError):
    """Redis has no memory left to store a task."""


class NotAllowed(DelayQError, OperationalError):
    """The broker's account lacks a right that publishing requires."""


class QueueFull(DelayQError, OperationalError):
    """A queue has reached ``max_scheduled`` or a limit of RabbitMQ. Nothing was stored."""


class NoQueue(DelayQError, OperationalError):
    """RabbitMQ has no queue for a message. Nothing was stored."""


class BrokerNotEmpty(DelayQError):
    """Exchanges and queues were not removed, because tasks still wait in them."""


class UniqueConflict(DelayQError):
    """Another task has the unique key, with ``on_conflict="error"``. Nothing was stored.

    Attributes
    ----------
    other_id : str
        The id of the task that has the key.
    """

    def __init__(self, message: str, other_id: str = "") -> None:
        super().__init__(message)
        self.other_id = other_id


class InvalidUnique(DelayQError, ValueError):
    """A unique key cannot be computed, or its options contradict each other."""


class InvalidLimit(DelayQError, ValueError):
    """A ``Limit`` is invalid, cannot hold for a task, or has no key for the arguments of a call."""


class InvalidRetry(DelayQError, ValueError):
    """``retry_intervals`` or another retry option is negative, empty or not a number."""


class InvalidContext(DelayQError, ValueError):
    """A context value is not JSON or too large, or its name is invalid."""


class TaskReturnedFalse(DelayQError):
    """A task with ``false_is_failure`` has returned False."""


class InvalidFilter(DelayQError, ValueError):
    """A filter, a name or an id is invalid."""


class InvalidCursor(DelayQError, ValueError):
    """A cursor was not returned by ``list``, or belongs to another filter."""


class NotReplicated(DelayQError, OperationalError):
    """A task is stored, but on fewer replicas than ``wait_replicas`` requires."""


class TravelError(DelayQError, RuntimeError):
    """A test cannot move the clock here, or its tasks never come to rest."""


class ServerNotFound(DelayQError, FileNotFoundError):
    """No server program was found to start as a private process."""


class RedisServerNotFound(ServerNotFound):
    """No ``redis-server`` program was found to start as a private process."""


class EmbeddedServerError(DelayQError, RuntimeError):
    """A private server process did not start or did not answer."""


class EmbeddedRedisError(EmbeddedServerError):
    """A private ``redis-server`` process did not start or did not answer."""


class InvalidWebhook(DelayQError, ValueError):
    """``celery_delayq.webhook`` may not send to a URL, or may not send a header or a payload."""


class DeliveryFailed(DelayQError):
    """The delivery of a webhook failed. The webhook is tried again.

    Attributes
    ----------
    status : int | None
        Status code of the response; None without a response.
    retry_after : float | None
        Seconds after which the receiver accepts another attempt; None if it did not say.
    """

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class DeliveryRefused(DelayQError):
    """The receiver refuses a webhook. The webhook is not tried again.

    Attributes
    ----------
    status : int | None
        Status code of the response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class InvalidSignature(DelayQError, ValueError):
    """A received webhook has no valid signature, or is too old."""


class TransferError(DelayQError):
    """An export, an import or an archive cannot begin or continue."""


class InvalidPlace(TransferError, ConfigError):
    """A target or source is invalid, or neither the call nor a setting names one."""


class InvalidSchedule(ConfigError):
    """A schedule has no ticks, or its ticks cannot be computed."""


class ScheduleNotImportable(InvalidSchedule):
    """The class of a schedule is not registered in this process, or cannot be imported."""
