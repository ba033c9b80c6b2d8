"""Tests in several processes fetch one release of Flower at the same time."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.support import TIMEOUT, flower


def test_a_release_is_whole_for_all_who_fetch_it_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = Barrier(2)

    def install(command: Sequence[str], **_: Any) -> None:
        """Write as pip does, while the other one does the same."""
        folder = Path(command[command.index("--target") + 1])
        both.wait(TIMEOUT)
        folder.mkdir(exist_ok=True)
        (folder / "flower.py").write_text("")
        both.wait(TIMEOUT)

    monkeypatch.setattr(flower, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", install)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(flower.unpacked, ["2.0.1", "2.0.1"])

    assert first == second == flower.unpacked("2.0.1")
    assert [path.name for path in first.iterdir()] == ["flower.py"]
    assert [path.name for path in first.parent.iterdir()] == [first.name]
