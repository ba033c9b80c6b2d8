"""The client for asyncio: publish, read and control tasks without blocking the event loop."""

from __future__ import annotations

from celery_delayq.aio.client import AsyncDelayQ

__all__ = ["AsyncDelayQ"]
