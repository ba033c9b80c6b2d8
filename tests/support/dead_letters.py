"""Make dead letters without workers."""

from __future__ import annotations

import base64
import json
from typing import Any

from celery_delayq import DelayQ
from celery_delayq.model.dead_letter import pack_details

#: Time of death of dead letters in tests (ms).
AT = 1_700_000_000_000

TRACEBACK = "".join(
    f'  File "/srv/shop/tasks/billing.py", line {n}, in step_{n}\n    charge(order, retry={n})\n'
    for n in range(10)
)


def packed(body: Any, headers: Any, properties: Any, **other: Any) -> bytes:
    """Return a message as stored in a ready list; *other* replaces a part, or removes it (None)."""
    whole = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
        **other,
    }
    return json.dumps({name: part for name, part in whole.items() if part is not None}).encode()


def message(id: str, task: str = "shop.mail", size: int = 0, **headers: Any) -> bytes:
    """Return the message of a task, with an argument of *size* characters."""
    body = [[id, "x" * size], {}, {"callbacks": None, "errbacks": None, "chain": None}]
    return json.dumps(
        {
            "body": json.dumps(body),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": task,
                "id": id,
                "eta": None,
                "expires": None,
                "retries": 3,
                "root_id": id,
                "parent_id": None,
                "group": None,
                "argsrepr": f"({id!r}, …)",
                "kwargsrepr": "{}",
                **headers,
            },
            "properties": {
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": "celery"},
                "priority": 0,
                "delivery_tag": f"tag-{id}",
            },
        }
    ).encode()


def details(exception: str = "ValueError", **more: Any) -> bytes:
    """Return the details of a failure."""
    return pack_details(
        {
            "exception": exception,
            "message": "the card was declined",
            "traceback": f"Traceback (most recent call last):\n{TRACEBACK}{exception}: declined",
            "retries": 3,
            "worker": "celery@one",
            "started": 1_900_000_000_000,
            **more,
        }
    )


def stored(died: int, reason: str, message: bytes, details: bytes = b"") -> bytes:
    """Return a dead letter as ``include/dead_letter.lua`` writes it."""
    if not details:
        return f"1 {died} 0 {reason}\n".encode() + message
    return f"2 {died} 0 {len(details)} {reason}\n".encode() + details + message


def fill(
    delayq: DelayQ,
    number: int,
    *,
    queue: str = "celery",
    task: str = "shop.mail",
    size: int = 0,
    age: float = 60.0,
) -> list[str]:
    """Store dead letters that died one ms after the other, the first one *age* seconds ago."""
    store = delayq.store
    begun = store.now_ms() - int(age * 1000)
    failure = details()
    ids = [f"{queue}-{n:06}" for n in range(number)]
    for start in range(0, number, 100):
        dead_letters = [
            (id, begun + n, stored(begun + n, "it failed", message(id, task, size), failure))
            for n, id in enumerate(ids[start : start + 100], start)
        ]
        store.dead_letters.restore(queue, dead_letters)
    return ids


def reasons(delayq: DelayQ, queue: str = "celery") -> dict[bytes, str]:
    """Return the reasons of a queue's dead letters by message; each message is there once."""
    found = list(delayq.store.dead_letters.all(queue))
    by_message = {dead_letter.message: dead_letter.reason for dead_letter in found}
    assert len(by_message) == len(found), "each is dead-lettered once"
    return by_message


def dead_letters(delayq: DelayQ) -> dict[tuple[str, bytes], tuple[bytes, float]]:
    """Return the stored bytes and times of death of all dead letters."""
    store = delayq.store
    found = {}
    for queue in store.registry():
        key = store.keys.queue(queue)
        died = dict(store.client.zrange(key.dead_at, 0, -1, withscores=True))
        for id, data in store.client.hgetall(key.dead).items():
            found[queue, id] = data, died.pop(id)
        assert not died
    return found
