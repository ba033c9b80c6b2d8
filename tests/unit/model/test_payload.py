"""Requests and bodies of messages are those that Celery would make."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from celery.app.task import Context
from kombu.serialization import dumps

from celery_delayq.model.envelope import Record
from celery_delayq.model.payload import (
    READABLE_CONTENT_TYPES,
    TaskMessage,
    body_of,
    request_of,
    request_of_record,
)
from celery_delayq.utils import message_json

EMBEDDED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

HEADERS = {
    **{"lang": "py", "task": "t", "id": "one", "eta": None, "timelimit": [3, 2], "group": "g"},
    **{"argsrepr": "()", "ignore_result": True, "retries": 1, "root_id": "r", "parent_id": "p"},
}


def message(
    args: Any = (1,), kwargs: Any = None, serializer: str = "json", **headers: Any
) -> dict[str, Any]:
    content_type, encoding, body = dumps((args, kwargs or {}, EMBEDDED), serializer=serializer)
    data = body if isinstance(body, bytes) else body.encode()
    return {
        "body": base64.b64encode(data).decode(),
        "content-type": content_type,
        "content-encoding": encoding,
        "headers": {**HEADERS, **headers},
        "properties": {
            **{"body_encoding": "base64", "delivery_tag": "tag", "correlation_id": "one"},
            **{"delivery_info": {"routing_key": "q"}, "reply_to": "me"},
        },
    }


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-tenant": "a", "trace": [1]},
        {"headers": {"own": 1}},
        {"headers": {}},
        {"stamps": {"a": [1]}, "stamped_headers": ["a"]},
        {"timelimit": None},
        {"clear": "name of a method"},
    ],
    ids=str,
)
def test_a_request_is_that_of_celery(headers: dict[str, Any]) -> None:
    given = message(**headers)
    properties = given["properties"]

    request = request_of(TaskMessage(given))

    expected = Context(
        {
            **given["headers"],
            **EMBEDDED,
            **{"args": [1], "kwargs": {}, "properties": properties},
            **{"delivery_info": {"routing_key": "q"}, "reply_to": "me", "correlation_id": "one"},
        }
    )
    assert request.__dict__ == expected.__dict__
    record = Record(0, "tag", "t", message_json.encode(given)).pack()
    assert request_of_record("one", record).__dict__ == expected.__dict__


@pytest.mark.parametrize(
    "record",
    [b"", b"other", *(Record(0, "m", "t", text).pack() for text in (b"[]", b"{}", b"{", b"\xff"))],
)
def test_of_an_unreadable_record_the_request_has_the_id(record: bytes) -> None:
    assert request_of_record("one", record).__dict__ == Context(id="one").__dict__


@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack"])
def test_a_body_is_decoded_as_kombu_does(serializer: str) -> None:
    pytest.importorskip({"json": "json", "yaml": "yaml", "msgpack": "msgpack"}[serializer])
    args = [1, 2**63, 1.5, "ü", None, {"a": [True]}]

    assert body_of(message(args, {"b": 1}, serializer)) == (args, {"b": 1}, EMBEDDED)


@pytest.mark.parametrize(
    ("body", "args"),
    [
        ('[["\ud800"], {}, {}]', ["\ud800"]),
        ("[[NaN], {}, {}]", None),
        ('[[{"__type__": "bytes", "__value__": "x"}], {}, {}]', [b"x"]),
    ],
    ids=["surrogate", "NaN", "type"],
)
def test_json_that_only_kombu_reads(body: str, args: Any) -> None:
    given = {**message(), "body": body}
    del given["properties"]["body_encoding"]

    found, _, _ = body_of(given)

    assert found == args if args else found[0] != found[0]


@pytest.mark.parametrize("body", ["", "{", "[1]", json.dumps([[], {}])])
def test_other_bodies_are_errors_of_kombu_or_python(body: str) -> None:
    given = {**message(), "body": body}
    del given["properties"]["body_encoding"]

    with pytest.raises(Exception):  # noqa: B017 - as documented
        body_of(given)


def test_json_is_refused_where_it_is_not_accepted() -> None:
    with pytest.raises(Exception, match="untrusted"):
        body_of(message(), READABLE_CONTENT_TYPES - {"application/json"})
