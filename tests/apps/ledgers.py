"""The ledger of runs and the gates of tasks, in a second Redis, which no fault touches."""

from __future__ import annotations

import os
import time

from redis import Redis

from tests.support.faults.ledger import Ledger

#: Seconds between two looks at a gate. Dozens of tasks look while they wait, and take the processor
#: time of what the test waits for.
LOOK = 0.1

URL = os.environ.get("APP_LEDGER", "redis://127.0.0.1:1")

ledger = Ledger(URL)
gates = Redis.from_url(URL)


def wait_for(gate: str) -> None:
    """Return when a gate is open; "" is no gate."""
    while gate and not gates.exists(f"gate:{gate}"):
        time.sleep(LOOK)
