"""Kombu transports: where delayed messages go when they are published, and come from."""

from celery_delayq.transport.channel import Channel, SentinelChannel
from celery_delayq.transport.redis import Transport

__all__ = ["Channel", "SentinelChannel", "Transport"]
