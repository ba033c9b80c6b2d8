"""The body of a message is decoded once, and a request has the arguments that Celery gives it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu import Message
from kombu.serialization import dumps, prepare_accept_content

from celery_delayq.integration.fast import bodies

INIT = getattr(Request.__init__, "__wrapped__", Request.__init__)
BODY = ([1, "two"], {"three": 3.0}, {"callbacks": None})


class CountedMessage(Message):
    """A message that counts how often its body is decoded."""

    decoded = 0

    def _decode(self) -> Any:
        self.decoded += 1
        return super()._decode()

    @cached_property
    def payload(self) -> Any:
        return self.decode()


def message_of(app: Celery, serializer: str) -> CountedMessage:
    content_type, encoding, body = dumps(BODY, serializer=serializer)
    return CountedMessage(
        body=body,
        content_type=content_type,
        content_encoding=encoding,
        headers={"id": "id", "task": "work", "lang": "py"},
        properties={"correlation_id": "id"},
        delivery_info={},
        accept=prepare_accept_content(app.conf.accept_content),
    )


@pytest.fixture
def app() -> Celery:
    app = Celery("app", set_as_current=False)
    app.conf.accept_content = ["json", "pickle", "yaml"]

    @app.task(name="work", lazy=False, shared=False)
    def work() -> None:
        pass

    return app


def request_of(app: Celery, init: Any, message: Message, **given: Any) -> Any:
    """Return a request that a constructor has made."""
    request = Request.__new__(Request)
    init(request, message, app=app, task=app.tasks["work"], headers=message.headers, **given)
    return request


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("ours", [False, True], ids=["stock", "ours"])
def test_a_request_uses_the_body_that_its_message_has_decoded(
    app: Celery, serializer: str, ours: bool
) -> None:
    message = message_of(app, serializer)
    init = bodies.decode_once(Request, INIT) if ours else INIT

    request = request_of(app, init, message, body=message.body, decoded=False)

    args, kwargs, embed = request._payload
    assert (list(args), kwargs, embed) == BODY
    # A process of a pool decodes what has a content type.
    assert (request.content_type is None) == ours
    assert message.decoded == 1


@pytest.mark.parametrize(
    "given",
    [{"body": BODY, "decoded": True}, {"body": b"other", "decoded": False}, {}],
    ids=["decoded already", "another body", "none"],
)
def test_other_bodies_are_left_as_they_are(app: Celery, given: dict[str, Any]) -> None:
    found = []
    for init in (INIT, bodies.decode_once(Request, INIT)):
        request = request_of(app, init, message_of(app, "json"), **given)
        found.append((request._body, request.content_type, request.content_encoding))

    assert found[0] == found[1]
