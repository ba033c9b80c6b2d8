"""Messages in many JSON spellings, for code that changes messages without parsing them."""

from __future__ import annotations

from typing import Any

from celery import Celery
from hypothesis import strategies as st

#: What a sender may have put beside what is known, in a spelling that misleads.
TEXTS = st.sampled_from(
    ["", "plain", '"retries": 3, ', '"delivery_tag": "tag"', "\\", '\\"', "ü\0", '"delayq": {}, ']
)
OWN = st.fixed_dictionaries(
    {},
    optional={
        "label": st.just("id 0123456789abcdef 0 -"),
        "eta": st.just("2026-01-01T00:00:00+00:00"),
        "retry": st.just({"max": 5}),
        "budget": st.just(["root", 5]),
        "context": TEXTS,
        "deliveries": st.just(2),
    },
)


def usually(plain: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Return what is plain nine times of ten."""
    return st.integers(0, 9).flatmap(
        lambda n: st.sampled_from(others) if n == 9 else st.just(plain)
    )


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Messages as Celery and kombu order what is in them, and as others do."""
    headers = {
        "task": draw(usually("shop.mail", 'a "task"')),
        "id": draw(usually("id", '"retries": 3, ')),
        "shadow": draw(usually(None, "other", '"task": ')),
        "eta": draw(usually(None, "2026-01-01T00:00:00+00:00")),
        "expires": draw(usually(None, "2020-01-01", "2999-01-01")),
        "group": draw(st.sampled_from([None, "group"])),
        "group_index": draw(st.sampled_from([None, 3])),
        "retries": draw(usually(3, 0, 31, None, 3.5)),
        "timelimit": [None, None],
        "argsrepr": draw(TEXTS),
        "stamps": draw(st.dictionaries(TEXTS, st.just(3)) | st.just({"retries": 3, "more": 1})),
    }
    properties: dict[str, Any] = {
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": draw(st.sampled_from([0, 3, 9])),
        "body_encoding": "base64",
        "delivery_tag": draw(usually("tag", 'a "tag"')),
    }
    own = draw(st.none() | st.just({"label": "id 0123456789abcdef 0 -"}) | OWN)
    if own is not None and draw(st.booleans()):
        properties = {"delayq": own, **properties}
    elif own is not None:
        properties["delayq"] = own
    if draw(usually(False, True)):
        headers = dict(draw(st.permutations([*headers.items()])))
        properties = dict(draw(st.permutations([*properties.items()])))
    message = {"body": draw(TEXTS), "headers": headers, "properties": properties}
    return dict(draw(st.permutations([*message.items()])))


def sent(argsrepr: str = "()", own: dict[str, Any] | None = None, **tail: Any) -> dict[str, Any]:
    """Return a message as Celery and kombu spell it, with our data if there are any."""
    with Celery("shop", set_as_current=False) as app:
        made = app.amqp.as_task_v2("id", "shop.mail", argsrepr=argsrepr, retries=3, origin="here")
    properties: dict[str, Any] = {
        **made.properties,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 3,
        "body_encoding": "base64",
        "delivery_tag": "tag",
        **tail,
    }
    message = {"body": "b", "headers": made.headers, "properties": properties}
    if own is None:
        return message
    return {"properties": {}, **message} | {"properties": {"delayq": own, **properties}}
