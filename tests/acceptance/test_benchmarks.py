"""Each measurement of `make bench` runs, in its small size; what it shows is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", NAMES)
def test_each_measurement_has_rows(name: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--only", name]

    done = subprocess.run([*command, "--json", rows], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads(rows.read_text("utf-8"))["figures"]
