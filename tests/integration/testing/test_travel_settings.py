"""An app travels with the settings of its production: those of a fleet do not hold meanwhile."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from celery import Celery
from celery.app.defaults import DEFAULTS

from celery_delayq import DelayQ
from celery_delayq.settings import Settings
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.integration.testing.conftest import Runs

#: By setting of this package: a value that a fleet in production may have.
OURS: dict[str, Any] = {
    "dispatch": False,
    "dispatch_interval": 0.5,
    "dispatch_batch": 1,
    "registry_refresh": 3600.0,
    "min_delay": 60.0,
    "lease": 1.0,
    "max_deliveries": 1,
    "block_timeout": 0.5,
    "wait_replicas": 2,
    "wait_timeout": 60.0,
    "promote_rate": 1000.0,
    "max_ready": 1,
    "max_scheduled": 10,
    "dead_letters": False,
    "dead_letters_age": 60.0,
    "dead_letters_max": 1,
    "dead_letters_archive": "postgresql://nobody@database.example.org/dead",
    "dead_letters_archive_after": 0.0,
    "history": 100,
    "liveness_file": "/proc/none/alive",
    "revoke_expires": 60.0,
    "cluster_tags": 3,
    "unit": 1.0,
    "max_delay": 3600.0,
    "prefix": "shop",
    "queue_type": "classic",
    "max_length": 1,
    "declare": False,
    "queues": {"celery": {"max_ready": 1}},
}
#: The same for Celery's settings of the broker and of results on Redis.
CELERYS: dict[str, Any] = {
    "broker_url": "redis://production.example.org:6379/0",
    "broker_read_url": "redis://replica.example.org:6379/0",
    "broker_write_url": "redis://production.example.org:6379/0",
    "broker_transport": "sqs",
    "broker_transport_options": {
        "master_name": "shop",
        "sentinel_kwargs": {"password": "secret"},
        "confirm_publish": True,
        "region": "eu-west-1",
        "global_keyprefix": "shop:",
        "max_retries": 1,
    },
    "broker_connection_timeout": 0.5,
    "broker_connection_retry": False,
    "broker_connection_retry_on_startup": False,
    "broker_connection_max_retries": 1,
    "broker_channel_error_retry": True,
    "broker_failover_strategy": "shuffle",
    "broker_heartbeat": 10,
    "broker_heartbeat_checkrate": 3.0,
    "broker_login_method": "EXTERNAL",
    "broker_native_delayed_delivery_queue_type": "classic",
    "broker_pool_limit": 0,
    "broker_pool_acquire_timeout": 1.0,
    "broker_use_ssl": {"ssl_cert_reqs": "required"},
    "broker_host": "rabbit.example.org",
    "broker_port": 5671,
    "broker_user": "shop",
    "broker_password": "secret",
    "broker_vhost": "shop",
    "redis_backend_use_ssl": {"ssl_cert_reqs": "required"},
    "redis_db": 3,
    "redis_host": "production.example.org",
    "redis_max_connections": 3,
    "redis_username": "shop",
    "redis_password": "secret",
    "redis_port": 6380,
    "redis_socket_timeout": 5.0,
    "redis_socket_connect_timeout": 5.0,
    "redis_retry_on_timeout": True,
    "redis_socket_keepalive": True,
    "redis_client_name": "shop",
    "redis_backend_health_check_interval": 10,
    "redis_backend_credential_provider": "nowhere.Provider",
    "result_backend": "rediss://production.example.org:6379/0?ssl_cert_reqs=required",
    "result_backend_transport_options": {"master_name": "shop", "global_keyprefix": "shop:"},
    "result_backend_max_sleep_between_retries_ms": 1,
    "result_backend_max_retries": 1,
    "result_backend_base_sleep_between_retries_ms": 1,
    "result_backend_always_retry": True,
}
#: And for further settings that change what becomes of a task.
FURTHER: dict[str, Any] = {
    "accept_content": ["json", "pickle"],
    "enable_utc": False,
    "event_serializer": "json",
    "task_acks_late": True,
    "task_always_eager": True,
    "task_create_missing_queues": False,
    "task_default_delivery_mode": "transient",
    "task_default_exchange_type": "topic",
    "task_default_priority": 5,
    "task_default_queue_type": "quorum",
    "task_eager_propagates": True,
    "task_publish_retry": False,
    "task_send_sent_event": True,
    "task_store_eager_result": True,
    "task_track_started": True,
    "timezone": "America/St_Johns",
    "worker_disable_prefetch": True,
    "worker_disable_rate_limits": True,
    "worker_enable_remote_control": False,
    "worker_send_task_events": True,
}
BROKER_AND_RESULTS = ("broker_", "redis_", "result_backend")


def test_each_setting_has_a_row() -> None:
    assert OURS.keys() == {each.name for each in fields(Settings)}
    assert {name for name in DEFAULTS if name.startswith(BROKER_AND_RESULTS)} <= CELERYS.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((None, {name: value}) for name, value in OURS.items()),
        *CELERYS.items(),
        *FURTHER.items(),
    ],
    ids=[*OURS, *CELERYS, *FURTHER],
)
def test_tasks_and_ticks_run_with_a_setting(
    name: str | None, value: Any, delayq_redis: RedisUnderTest, runs: Runs
) -> None:
    app = Celery("shop", broker="amqp://rabbit.example.org//", set_as_current=False)
    app.conf.result_backend = "redis://production.example.org:6379/0"
    app.conf.beat_schedule = {"hourly": {"task": "note", "schedule": 3600.0, "args": ["tick"]}}
    app.conf.update(
        {"broker_transport_options": {"delayq": value}} if name is None else {name: value}
    )
    DelayQ(app)

    @app.task(shared=False, name="note")
    def note(text: str) -> str:
        runs.note(text)
        return text

    with TimeTravel(app, delayq_redis.server) as travel:
        start = travel.now
        result = note.apply_async(("ada",), countdown=5400)
        assert travel.travel(hours=2) == 3
        assert result.get(timeout=5) == "ada"

    assert runs.after(start) == [("tick", 1), ("ada", 1.5), ("tick", 2)]
