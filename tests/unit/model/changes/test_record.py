"""Records of edited messages: what scripts read in them stays, or follows the edit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from celery_delayq.errors import RecordError
from celery_delayq.model.changes.record import edited_record
from celery_delayq.model.envelope import (
    Due,
    Entry,
    Label,
    Record,
    limit_of,
    with_skip_after,
)
from celery_delayq.store.keys import Layout
from celery_delayq.utils import message_json

STEP_OF = Layout().step_of
EXPIRES = "2100-01-31T09:00:00+00:00"


def message(size: int = 0, **own: Any) -> dict[str, Any]:
    headers = {"task": "shop.mail", "id": "a 1", "eta": EXPIRES, "expires": None}
    properties = {
        "delivery_tag": "f" * 32,
        "delivery_info": {},
        "priority": 0,
        "delayq": {"message_id": "n" * 16, **own},
    }
    return {"body": "x" * size, "headers": headers, "properties": properties}


UNIQUE: dict[str, Any] = {"unique": {"key": "dshop.mail:1", "policy": "keep", "max_wait": 5}}


def record(size: int = 0, **own: Any) -> bytes:
    return Entry.of(message(size, **own), 0, Due(5)).data


def same(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return message


RECORDS: dict[str, bytes] = {
    "plain": record(),
    "unique": record(**UNIQUE),
    "skip_after": record(skip_after=7000, **UNIQUE),
    "limit": record(limit="api:1", **UNIQUE),
    "large": record(100_000, limit="api:1", **UNIQUE),
    "tick": with_skip_after(Entry.of(message(), 0, Due(5)), 9000).data,
    "large tick": with_skip_after(Entry.of(message(100_000), 0, Due(5)), 9000).data,
}


@pytest.mark.parametrize("data", RECORDS.values(), ids=RECORDS)
def test_without_an_edit_all_bytes_stay(data: bytes) -> None:
    assert edited_record(data, same, STEP_OF) == data


@pytest.mark.parametrize("data", RECORDS.values(), ids=RECORDS)
def test_label_and_header_follow_the_edit(data: bytes) -> None:
    def edit(message: Mapping[str, Any]) -> Mapping[str, Any]:
        own = dict(message["properties"]["delayq"])
        if "unique" in own:
            own["unique"] = {**own["unique"], "key": "dshop.post:2"}
        if "limit" in own:
            own["limit"] = "api:2"
        headers = {**message["headers"], "task": "shop.post", "expires": EXPIRES}
        properties = {**message["properties"], "priority": 7, "delayq": own}
        return {**message, "headers": headers, "properties": properties}

    before, after = Record.unpack(data), Record.unpack(edited_record(data, edit, STEP_OF))

    assert after[:3] == (6, before.message_id, "shop.post")
    old, new = Label.of(before.message), Label.of(after.message)
    assert old is not None
    assert new is not None
    assert new[:2] == old[:2] == (b"a 1", b"n" * 16)
    assert new.unique == (b"-" if old.unique == b"-" else b"dshop.post:2")
    limit, limit_before = limit_of(after.message), limit_of(before.message)
    assert (limit is None) == (limit_before is None)
    assert limit is None or limit == ("api:2", 4_105_069_200_000)
    label = json.loads(after.message)["properties"]["delayq"]["label"]
    label_before = json.loads(before.message)["properties"]["delayq"]["label"]
    assert label.split(" ")[2] == label_before.split(" ")[2]


def test_a_message_without_a_label_gets_one_with_its_message_id() -> None:
    sent = message()
    del sent["properties"]["delayq"]
    data = Record(3, "m" * 16, "shop.mail", message_json.encode(sent)).pack()

    after = Record.unpack(edited_record(data, same, STEP_OF))

    assert after[:3] == (3, "m" * 16, "shop.mail")
    assert Label.of(after.message) == (b"a 1", b"m" * 16, b"-")


def packed(text: bytes) -> bytes:
    return Record(0, "n", "shop.mail", text).pack()


def changed(**parts: Any) -> bytes:
    return packed(json.dumps({**message(), **parts}).encode())


def with_own(own: Any) -> bytes:
    return changed(properties={**message()["properties"], "delayq": own})


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff", packed(b"{"), packed(b"{}"), packed(b'{"properties": 5}')),
        *(changed(headers=None), changed(headers=[]), changed(headers={"task": "t"})),
        changed(headers={"task": 5, "id": "a"}),
        *(changed(properties={}), with_own({"label": 5}), with_own({"label": "a"})),
        *(with_own({"skip_after": "x"}), with_own({"unique": [1]}), with_own({"limit": 5})),
    ],
)
def test_what_no_script_or_sender_of_ours_wrote_is_unreadable(data: bytes) -> None:
    with pytest.raises(RecordError):
        edited_record(data, same, STEP_OF)


def test_an_edit_keeps_the_id() -> None:
    def edit(message: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**message, "headers": {**message["headers"], "id": "b"}}

    with pytest.raises(RecordError, match="its id was changed"):
        edited_record(record(), edit, STEP_OF)
