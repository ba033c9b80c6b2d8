"""Every exception of the package; each message says what was wrong and what would be right."""

from __future__ import annotations

from kombu.exceptions import OperationalError


class DelayQError(Exception):
    """Base class of everything that this package raises on purpose."""

    # Not that of redis-py 8, which has no message, and fails where an error is an OSError too.
    __repr__ = Exception.__repr__


class ConfigError(DelayQError, ValueError):
    """A ``delayq`` setting, a broker URL or an argument is unknown, ill-typed or out of range."""


class NotSupported(ConfigError):
    """The app's broker cannot do this."""


class PeriodicExists(ConfigError):
    """There is a periodic entry of that name already."""


class PeriodicUnknown(DelayQError, LookupError):
    """There is no periodic entry of that name."""


class InvalidETA(DelayQError, ValueError):
    """An ``eta`` or ``countdown`` is not a point in time that can be stored."""


class InvalidOption(DelayQError, ValueError):
    """An option of a call, such as ``time_limit``, is invalid; a worker would break on it."""


class RecordError(DelayQError, ValueError):
    """A record in Redis cannot be read by this version."""


class UnsupportedServer(DelayQError, OperationalError):
    """The server lacks what the package needs: Redis 6.2, RabbitMQ 3.10."""


class BrokerUnavailable(DelayQError, OperationalError, ConnectionError):
    """The broker cannot be reached, went away, refuses the login, or is no master any more."""


class BrokerTimeout(BrokerUnavailable):
    """The broker did not answer in time; whether it did what was asked is not known."""


class BrokerBlocked(DelayQError, OperationalError):
    """RabbitMQ is low on memory or disk and did not confirm; it may still run the task later."""


class CommandRefused(DelayQError):
    """Redis refused a command: no permission, a key of another type, an error in a script."""


class EarlierLayout(DelayQError, OperationalError):
    """The database has keys of a version before 0.1.0 that this version cannot read."""


class StoreFull(DelayQError, OperationalError):
    """Redis refused to store a task because it has no memory left."""


class NotAllowed(DelayQError, OperationalError):
    """The account of the broker lacks a right that publishing needs."""


class QueueFull(DelayQError, OperationalError):
    """A queue has as many entries as ``max_scheduled`` or RabbitMQ allows; nothing was stored."""


class NoQueue(DelayQError, OperationalError):
    """RabbitMQ has no queue for a message; nothing was stored."""


class BrokerNotEmpty(DelayQError):
    """Exchanges and queues were not removed, since tasks still wait in them."""


class UniqueConflict(DelayQError):
    """Another task has the unique key, and ``on_conflict="error"``; nothing was stored.

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


class InvalidRetry(DelayQError, ValueError):
    """``retry_intervals`` or another option of retrying is negative, empty or no number."""


class InvalidContext(DelayQError, ValueError):
    """A context value is not JSON or too large, or its name is invalid."""


class TaskReturnedFalse(DelayQError):
    """A task with ``false_is_failure`` has returned False."""


class InvalidFilter(DelayQError, ValueError):
    """A filter, a name or an id is invalid."""


class InvalidCursor(DelayQError, ValueError):
    """A cursor was not returned by ``list``, or belongs to another filter."""


class NotReplicated(DelayQError, OperationalError):
    """A task is stored, but fewer replicas have it than ``wait_replicas`` asks for."""


class ServerNotFound(DelayQError, FileNotFoundError):
    """No server program was found to start as a private process."""


class RedisServerNotFound(ServerNotFound):
    """No ``redis-server`` program was found to start as a private process."""


class EmbeddedServerError(DelayQError, RuntimeError):
    """A private server process did not start or did not answer."""


class EmbeddedRedisError(EmbeddedServerError):
    """A private ``redis-server`` process did not start or did not answer."""


class InvalidWebhook(DelayQError, ValueError):
    """A URL, header or payload may not be sent by ``celery_delayq.webhook``."""


class DeliveryFailed(DelayQError):
    """A webhook did not get through this time; it is tried again.

    Attributes
    ----------
    status : int | None
        The answer's status, None where there was no answer.
    retry_after : float | None
        Seconds after which the receiver wants to be asked again, None where it did not say.
    """

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class DeliveryRefused(DelayQError):
    """The receiver of a webhook does not want it; it is not tried again.

    Attributes
    ----------
    status : int | None
        The answer's status.
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
    """A schedule has no ticks, or they cannot be worked out."""


class ScheduleNotImportable(InvalidSchedule):
    """A schedule is of a class that is not registered here, or cannot be imported."""
