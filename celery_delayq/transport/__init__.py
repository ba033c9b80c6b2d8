"""Kombu transports: they publish delayed messages and consume due ones."""

from celery_delayq.transport.channel import Channel, SentinelChannel
from celery_delayq.transport.redis import Transport

__all__ = ["Channel", "SentinelChannel", "Transport"]
