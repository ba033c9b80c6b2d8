"""Check that no password is in any output."""

from __future__ import annotations

from pathlib import Path

import pytest

#: Passwords in URLs of the tests, also in URL encoding.
PASSWORDS = ("s3cret", "hunter2", "wr0ng", "pa55word", "se%40cret", "p%40ss", "p@ss", "pw-")
#: Bytes at the end of a log that are read.
MOST = 4_000_000


def check(where: str, text: str) -> None:
    """Fail if a text contains a password."""
    for password in PASSWORDS:
        if password in text:
            at = text.index(password)
            pytest.fail(f"{where} shows a password: …{text[max(at - 200, 0) : at + 100]}…")


def check_test(item: pytest.Item) -> None:
    """Check the output of a test, and the logs in its folder."""
    for when, kind, text in item._report_sections:
        check(f"{kind} of {when}", text)
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    for log in Path(folder).rglob("*.log") if folder else ():
        if log.is_file():
            check(log.name, log.read_bytes()[-MOST:].decode("utf-8", "replace"))
