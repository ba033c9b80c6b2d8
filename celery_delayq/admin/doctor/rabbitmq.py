"""Checks of RabbitMQ that a client can make."""

from __future__ import annotations

from collections.abc import Iterator

from amqp.exceptions import ChannelError
from celery import Celery

from celery_delayq.admin.doctor import round_trip
from celery_delayq.admin.doctor.finding import Finding, fault, unknown
from celery_delayq.admin.health import ask_rabbitmq
from celery_delayq.admin.rabbitmq import topology
from celery_delayq.errors import BrokerBlocked
from celery_delayq.transport.amqp.channel import Channel
from celery_delayq.transport.amqp.sizes import new_channel, ready_messages
from celery_delayq.utils.text import spelled

#: Seconds to wait for an answer.
_TIMEOUT_SECONDS = 5.0


def alarms(_app: Celery, channel: Channel) -> Iterator[Finding]:
    """No alarm may block publishers."""
    try:
        ask_rabbitmq(channel, _TIMEOUT_SECONDS)
    except BrokerBlocked as exc:
        yield fault(
            spelled(str(exc)).partition(";")[0],
            "free memory or disk space of the broker (rabbitmq-diagnostics alarms), or raise "
            "vm_memory_high_watermark or lower disk_free_limit",
        )


def latency(_app: Celery, channel: Channel) -> Iterator[Finding]:
    """RabbitMQ must answer fast."""
    todo = "move workers and RabbitMQ closer"
    yield from round_trip.latency(lambda: channel.basic_qos(0, 0, False), todo)


def delays(app: Celery, _channel: Channel) -> Iterator[Finding]:
    """The exchanges and queues of delays must exist, with the arguments that this app declares."""
    faults = [each for each in topology.check(app) if each.is_fault]
    missing = [each.name for each in faults if each.state is topology.State.MISSING]
    if missing:
        yield fault(
            f"declare=False, and {len(missing)} exchanges and queues of delays are missing",
            "celery -A <app> delayq topology --apply, with an account that may",
        )
    for each in faults:
        if each.state is topology.State.DIFFERENT:
            yield fault(
                f"{each.kind} {spelled(each.name)}: {spelled(each.reason)}",
                "give all processes the same unit, queue_type and max_length, or another prefix",
            )


def queues(app: Celery, channel: Channel) -> Iterator[Finding]:
    """Each queue must answer. A classic queue whose node is down does not answer."""
    names = [*app.amqp.queues.consume_from, *channel.topology.delay_queues()]
    for name in names:
        trial = new_channel(channel.connection)
        try:
            trial.queue_declare(name, passive=True)
        except ChannelError as exc:
            if exc.reply_code != 404 or "home node" in exc.reply_text:
                yield fault(
                    f"queue {spelled(name)} does not answer: {spelled(exc.reply_text)}",
                    "start the nodes that have its replicas (rabbitmq-queues quorum_status)",
                )
        finally:
            if trial.is_open:
                trial.close()


def unroutable(_app: Celery, channel: Channel) -> Iterator[Finding]:
    """The queue of each due task must exist."""
    name = channel.topology.unroutable
    if count := ready_messages(channel.connection, [name]).get(name):
        yield fault(
            f"{count:,} tasks are due, and their queue was deleted",
            "declare the queue again; delayq dead list makes dead letters of them, and dead replay "
            "sends them",
        )


def after_restart(_app: Celery, _channel: Channel) -> Iterator[Finding]:
    """Clients cannot read this setting."""
    yield unknown(
        "dead_letter_worker_publisher_confirm_timeout: with RabbitMQ's default of three minutes, a "
        "few tasks are up to six minutes late after a crash",
        "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}]. in advanced.config "
        "(docs/rabbitmq.md)",
    )


def leaders(_app: Celery, _channel: Channel) -> Iterator[Finding]:
    """Clients cannot see the leaders of quorum queues."""
    yield unknown(
        "a quorum queue without a leader, since most of its nodes are away, answers like any other",
        "rabbitmq-queues check_if_node_is_quorum_critical, rabbitmq-queues quorum_status <queue>",
    )
