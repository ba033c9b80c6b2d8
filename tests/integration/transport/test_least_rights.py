"""Parts of the suite, with faults, under the rights of an operator and of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = (
    "acceptance/test_faults_workers.py",
    "integration/admin/test_fsck.py",
    "integration/deadletters/test_dead_letters.py",
    "integration/dispatch/test_dispatcher.py",
    "integration/dispatch/test_leases_retry.py",
    "integration/periodic/test_periodic.py",
    "integration/schedule/test_control.py",
    "integration/transport/test_workers.py",
)
#: Other pools and long runs do the same to Redis.
CHOSEN = "not gevent and not eventlet and not solo and not rabbitmq"


@pytest.mark.nightly
def test_the_suite_passes_with_least_rights_and_nothing_is_refused() -> None:
    """See ``tests/support/least_rights.py``."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN]
    ran = subprocess.run(
        [*command, *(str(ROOT / "tests" / part) for part in PARTS)],
        cwd=ROOT,
        env={**os.environ, "TEST_LEAST_RIGHTS": "1"},
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout[-5000:]
