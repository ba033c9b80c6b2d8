"""Check that no password of a test is in what tests, programs and workers write."""

from __future__ import annotations

from pathlib import Path

import pytest

#: Those of URLs in the tests, also as URLs spell them.
PASSWORDS = ("s3cret", "hunter2", "wr0ng", "pa55word", "se%40cret", "p%40ss", "p@ss", "pw-")
#: Bytes at the end of a log that are looked at.
MOST = 4_000_000


def check(where: str, text: str) -> None:
    """Fail where a text has one of them."""
    for password in PASSWORDS:
        if password in text:
            at = text.index(password)
            pytest.fail(f"{where} shows a password: …{text[max(at - 200, 0) : at + 100]}…")


def check_test(item: pytest.Item) -> None:
    """Look at what a test has written, and at the logs in its folder."""
    for when, kind, text in item._report_sections:
        check(f"{kind} of {when}", text)
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    for log in Path(folder).rglob("*.log") if folder else ():
        if log.is_file():
            check(log.name, log.read_bytes()[-MOST:].decode("utf-8", "replace"))
