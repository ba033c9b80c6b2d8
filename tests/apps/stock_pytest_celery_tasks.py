"""Tasks that a suite for pytest-celery gives to its workers."""

from __future__ import annotations

import time

from celery import shared_task


@shared_task
def board(flight: str) -> str:
    print(f"boarding {flight}", flush=True)
    return f"{flight} boarded"


@shared_task(acks_late=True, reject_on_worker_lost=True)
def taxi(seconds: float) -> str:
    print("taxiing", flush=True)
    time.sleep(seconds)
    return "in the air"
