"""The private Redis of tests."""

from __future__ import annotations

import os
from typing import Any

from celery_delayq.embedded import EmbeddedRedis

#: Environment variable with the path of the server program for tests.
SERVER_VARIABLE = "DELAYQ_REDIS_SERVER"


def new_server(**options: Any) -> EmbeddedRedis:
    """Return a server that is not started yet, with the server program for tests."""
    return EmbeddedRedis(**{"executable": os.environ.get(SERVER_VARIABLE) or None, **options})
