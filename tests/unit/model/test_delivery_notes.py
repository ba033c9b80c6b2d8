"""A delivered message says where it is leased, and how often it was delivered."""

from __future__ import annotations

import json
from typing import Any

from celery_delayq.model.delivery import LeasePlace, note_delivery

LEASED = LeasePlace("here", "q", "me:1:1")


def envelope(**own: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {"delivery_tag": "t", "delivery_info": {"routing_key": "q"}}
    if own:
        properties["delayq"] = own
    return {"body": "", "properties": properties}


def test_the_first_delivery_is_no_redelivery() -> None:
    message = envelope()
    note_delivery(message, LEASED, 1)

    assert message["properties"] == {
        "delivery_tag": "me:1:1",
        "delivery_info": {"routing_key": "q"},
        "delayq": {"place": "here", "queue": "q", "deliveries": 1},
    }


def test_a_later_delivery_is_one_and_keeps_what_is_ours() -> None:
    own = {"eta": "2030-01-01T00:00:00+00:00"}
    message = envelope(**own)
    before = json.dumps(own)
    note_delivery(message, LEASED, 3)

    assert message["properties"]["delivery_info"] == {"routing_key": "q", "redelivered": True}
    notes = {"place": "here", "queue": "q", "deliveries": 3}
    assert message["properties"]["delayq"] == {**own, **notes}
    assert json.dumps(own) == before
