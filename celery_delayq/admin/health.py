"""Checks whether the app's broker accepts tasks."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from amqp.exceptions import AMQPError
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_delayq.errors import BrokerBlocked, ConfigError, DelayQError, NotAllowed, NotSupported
from celery_delayq.store.error_text import BROKER_ERRORS, broker_address, describe_error
from celery_delayq.store.server.checks import check_layout, check_writable
from celery_delayq.transport.amqp.channel import Channel as RabbitMQChannel
from celery_delayq.transport.amqp.messages import Routed
from celery_delayq.utils.deadline import NotInTime, begin


def why_not_ready(app: Celery, timeout: float = 5.0) -> str:
    """Return the reason why the broker accepts no tasks; "" if it accepts tasks. Stores nothing.

    Parameters
    ----------
    timeout : float
        Seconds after which a broker that has not answered counts as not ready.

    Raises
    ------
    ConfigError
        A setting or the URL is invalid, or the broker is not of this package.
    """
    return answer_within(app, lambda: _ask_broker(app, timeout), timeout)


def answer_within(app: Celery, question: Callable[[], str], timeout: float) -> str:
    """Return the result of *question*, or an error text after *timeout* seconds."""
    try:
        return begin(question).result(timeout)
    except NotInTime:
        return f"the broker at {broker_address(app)} did not answer in {timeout:g} s"


def _ask_broker(app: Celery, timeout: float) -> str:
    try:
        with app.connection_for_write(connect_timeout=timeout) as connection:
            connection.connect()
            channel = connection.default_channel
            if isinstance(channel, RabbitMQChannel):
                ask_rabbitmq(channel, timeout)
            else:
                _ask_redis(connection)
    except BrokerBlocked as exc:
        return str(exc)
    except ConfigError:
        raise
    except (DelayQError, *BROKER_ERRORS, AMQPError) as exc:
        return describe_error(exc, app)
    except OSError as exc:  # an error of py-amqp, which kombu converts only in a publish
        return describe_error(OperationalError(str(exc)), app)
    return ""


def _ask_redis(connection: Connection) -> None:
    channel = connection.default_channel
    if not hasattr(channel, "new_store"):
        raise NotSupported(
            f"the broker is {connection.as_uri()}; this needs a URL that begins with delayq+"
        )
    store = channel.new_store()
    check_layout(store.client, store.keys)
    check_writable(store.client, store.keys)


def ask_rabbitmq(channel: RabbitMQChannel, timeout: float) -> None:
    """Publish two messages without a queue. RabbitMQ confirms and drops them.

    Two, because RabbitMQ still accepts the first message while an alarm blocks publishers.
    """
    message = channel.prepare_message(b"", content_encoding="binary", headers={})
    try:
        with channel.limit_wait(timeout * 0.4):
            for _ in range(2):
                channel.post([Routed(message, "", f"delayq.health.{uuid4()}")])
                channel.refused()
    except NotAllowed:
        pass  # the account may not publish, but the broker has answered
