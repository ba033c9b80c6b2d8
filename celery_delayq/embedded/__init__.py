"""A private ``redis-server`` or ``rabbitmq-server`` for demos, tests and first steps.

The server listens on 127.0.0.1 only, has its own data folder and ends with the Python process that
started it. It does not replace a production server.

>>> with EmbeddedRedis() as server:              # doctest: +SKIP
...     app = Celery("shop", broker=server.url_for("delayq+redis"))

``python -m celery_delayq.embedded`` runs a Redis in the foreground and prints its URL.
"""

from __future__ import annotations

from celery_delayq.embedded.cluster import EmbeddedRedisCluster
from celery_delayq.embedded.find import find_redis_server, wheel_redis_server
from celery_delayq.embedded.ports import free_port
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.embedded.redis import EmbeddedRedis

__all__ = [
    "EmbeddedRabbitMQ",
    "EmbeddedRedis",
    "EmbeddedRedisCluster",
    "find_redis_server",
    "free_port",
    "wheel_redis_server",
]
