"""JSON of messages: what kombu reads and writes, read in less time where that makes no difference.

A worker reads JSON twice for each task. ``msgspec`` takes half as long, and refuses what it would
read in another way. To write with it saves nothing: it writes some types that kombu spells in a way
of its own, and to look for these takes as long.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from kombu.utils.json import JSONEncoder, object_hook

from celery_delayq.utils.foreign import reading

# Body and headers are serialized or flat by now; looking for circles costs a tenth.
_ENCODER = JSONEncoder(check_circular=False)
_DECODER = json.JSONDecoder()
#: For JSON in which kombu has spelled a value with its type; it takes twice as long.
_TYPED_DECODER = json.JSONDecoder(object_hook=object_hook)
_FAST_DECODER = msgspec.json.Decoder()


def encode(message: Any) -> bytes:
    """Return the bytes of *message* as kombu would put them into a ready list."""
    text: str = _ENCODER.encode(message)
    return text.encode()


def decode(data: bytes) -> Any:
    """Return a value of JSON as kombu would read it.

    Raises
    ------
    RecordError
        It is no JSON.
    """
    with reading("JSON"):
        # Plainly, or with an escape for one of its characters.
        if b"__type__" in data or b"\\u00" in data:
            return _TYPED_DECODER.decode(data.decode())
        try:
            return _FAST_DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Such as NaN and single surrogates, or it is no JSON: as kombu takes it.
            return _DECODER.decode(data.decode())
