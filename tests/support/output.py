"""The output of a test and of its processes: no password is in it, and a failed test shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

#: Passwords in URLs of the tests, also in URL encoding.
PASSWORDS = ("s3cret", "hunter2", "wr0ng", "pa55word", "se%40cret", "p%40ss", "p@ss", "pw-")
#: Bytes at the end of a log that are read.
MOST = 4_000_000


def check_passwords(where: str, text: str) -> None:
    """Fail if a text contains a password."""
    for password in PASSWORDS:
        if password in text:
            at = text.index(password)
            pytest.fail(f"{where} shows a password: …{text[max(at - 200, 0) : at + 100]}…")


def check_test(item: pytest.Item) -> None:
    """Check the output of a test, and the logs in its folder."""
    for when, kind, text in item._report_sections:
        check_passwords(f"{kind} of {when}", text)
    for name, text in logs(item, MOST):
        check_passwords(name, text)


def logs(item: pytest.Item, most: int) -> Iterator[tuple[str, str]]:
    """Yield the names of the logs in a test's folder, and of each log the last *most* bytes."""
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    for log in sorted(Path(folder).rglob("*.log")) if folder else ():
        if log.is_file():
            yield log.name, log.read_bytes()[-most:].decode("utf-8", "replace")
