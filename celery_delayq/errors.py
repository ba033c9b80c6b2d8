"""Every exception of the package; each message says what was wrong and what would be right."""

from __future__ import annotations

from kombu.exceptions import OperationalError


class DelayQError(Exception):
    """Base class of everything that this package raises on purpose."""


class ConfigError(DelayQError, ValueError):
    """A ``delayq`` setting or broker URL is unknown, ill-typed or out of range."""


class InvalidETA(DelayQError, ValueError):
    """An ``eta`` or ``countdown`` is no point in time that can be stored."""


class RecordError(DelayQError, ValueError):
    """A record stored in Redis is not one that this version can read."""


class UnsupportedServer(DelayQError, OperationalError):
    """The Redis server lacks what the package needs, such as version 6.2."""


class StoreFull(DelayQError, OperationalError):
    """Redis refused to store a task because it has no memory left."""


class NotReplicated(DelayQError, OperationalError):
    """A task is stored, but fewer replicas have it than ``wait_replicas`` asks for."""


class RedisServerNotFound(DelayQError, FileNotFoundError):
    """No ``redis-server`` program was found to start as a private process."""


class EmbeddedRedisError(DelayQError, RuntimeError):
    """A private ``redis-server`` process did not start or did not answer."""
