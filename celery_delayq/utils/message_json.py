"""JSON of messages, with the results of kombu's encoder and decoder.

A worker reads JSON twice for each task. ``msgspec`` takes half the time of ``json``, and refuses
texts that it would read differently from kombu. Messages are not written with ``msgspec``: it
writes some types differently from kombu, and a check for such types takes all the time it saves.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from kombu.utils.json import JSONEncoder, object_hook

from celery_delayq.utils.foreign import record_errors

# Body and headers have no circles here. The check for circles would cost a tenth of the time.
_ENCODER = JSONEncoder(check_circular=False)
_DECODER = json.JSONDecoder()
#: Decodes JSON with values that kombu wrote with their type. It takes twice as long.
_TYPED_DECODER = json.JSONDecoder(object_hook=object_hook)
_FAST_DECODER = msgspec.json.Decoder()


def encode(message: Any) -> bytes:
    """Return the bytes of *message* that kombu would put into a ready list."""
    text: str = _ENCODER.encode(message)
    return text.encode()


def decode_plain(data: bytes) -> Any:
    """Return the value that :func:`json.loads` would read; raises its errors."""
    try:
        return _FAST_DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return json.loads(data.decode())


def decode(data: bytes) -> Any:
    """Return the value that kombu would read from JSON.

    Raises
    ------
    RecordError
        The bytes are no JSON.
    """
    with record_errors("JSON"):
        # The name of kombu's type field, or an escape that may hide one of its characters.
        if b"__type__" in data or b"\\u00" in data:
            return _TYPED_DECODER.decode(data.decode())
        try:
            return _FAST_DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Texts that msgspec refuses and kombu reads, such as NaN and single surrogates.
            return _DECODER.decode(data.decode())
