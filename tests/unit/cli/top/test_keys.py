"""Keys of what a terminal sends, wherever its bytes are cut."""

from __future__ import annotations

import pytest

from celery_delayq.cli.top.terminal import KeyDecoder

SENT = {
    "q": ["q"],
    "ä界": ["ä", "界"],
    "\x1b[A": ["up"],
    "\x1bOB": ["down"],
    "\x1b[1;5A": ["up"],
    "\x1b[5~\x1b[6~": ["page up", "page down"],
    "\x1b[H\x1b[F\x1b[1~\x1b[4~\x1bOH": ["home", "end", "home", "end", "home"],
    "\r\n": ["enter", "enter"],
    "\x7f\b": ["backspace", "backspace"],
    "\x1b[Zx": ["x"],
    "\x1b[15~x": ["x"],
    "\x00\x01\t": [],
    "a\x1b[Bb": ["a", "down", "b"],
    "\x1b\x1b[A": ["escape", "up"],
    "\x1bq": ["escape", "q"],
}


@pytest.mark.parametrize("sent", SENT)
def test_bytes_are_keys(sent: str) -> None:
    data = sent.encode()
    for cut in range(len(data) + 1):
        decoder = KeyDecoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == SENT[sent], cut
        assert not decoder.is_inside


def test_escape_alone_is_a_key_once_nothing_follows() -> None:
    decoder = KeyDecoder()

    assert (decoder.feed(b"\x1b"), decoder.is_inside) == ([], True)
    assert (decoder.end(), decoder.is_inside) == (["escape"], False)
    assert (decoder.feed(b"x\x1b["), decoder.end()) == (["x"], [])
    assert decoder.feed(b"\xff\xfeq")[-1] == "q"
