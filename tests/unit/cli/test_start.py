"""``celery`` imports the plugin at every start: commands are imported when they are used."""

from __future__ import annotations

import subprocess
import sys


def test_the_plugin_imports_no_command() -> None:
    script = (
        "import sys, celery_delayq.cli\n"
        "print(*(name for name in sys.modules if name.startswith('celery_delayq.cli.')))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == []
