"""replay_in_place.lua: dead letters with messages in Celery's spelling become ready unparsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from celery_delayq.deadletters.replay import ReplayChanges, replay_entry
from celery_delayq.errors import RecordError
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import Due, Record
from celery_delayq.store.keys import Layout
from celery_delayq.utils.message_json import decode, encode
from tests.lua.bench import LAYOUT, QUEUE, Bench, Calls
from tests.lua.dead_letters import DETAILS, DIED

#: Misleading texts that a sender may add.
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
    """Return the plain value nine times of ten."""
    return st.integers(0, 9).flatmap(
        lambda n: st.sampled_from(others) if n == 9 else st.just(plain)
    )


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Messages in the order of Celery and kombu, and in other orders."""
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
    """Return a message as Celery and kombu spell it, with our data if given."""
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


#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/replay_in_place": (
        lambda s: s.dead_letters.replay_in_place("q", Layout(), "-inf", "+inf", b"", "f" * 32),
        b"0 5 1 3 5\ntwo",
    ),
}

TOKEN = "0000" + "f" * 28
LABEL = {"label": "id 0123456789abcdef 0 -"}
ETA = {"eta": "2026-01-01T00:00:00+00:00"}


def add_dead_letter(store: Bench, *dead_letters: bytes, details: bytes = DETAILS) -> None:
    """Store dead letters that died one ms after the other, with ids from 0 on."""
    store.register(QUEUE)
    for n, message in enumerate(dead_letters):
        header = b"2 %d 0 %d failed: why\n" % (DIED + n, len(details))
        store.dead_letters.restore(QUEUE, [(str(n), DIED + n, header + details + message)])


def replay_in_place(
    store: Bench, died_from: float | str = "-inf", after: bytes = b"", **options: Any
) -> Any:
    """Replay dead letters; return how many, the ids that are left, and whether there are more."""
    layout = options.pop("layout", Layout())
    token = options.pop("token", TOKEN)
    found = store.dead_letters.replay_in_place(
        QUEUE, layout, died_from, "+inf", after, token, **options
    )
    return found.number, [id for id, _ in found.unread], found.has_more


def numbered(n: int, **tail: Any) -> bytes:
    message = sent(**tail)
    message["headers"]["id"] = str(n)
    return encode(message)


def ids_in(store: Bench, name: str) -> list[str]:
    """Return the ids of a ready list, the next one first."""
    return [decode(each)["headers"]["id"] for each in reversed(store.client.lrange(name, 0, -1))]


@pytest.mark.parametrize("argsrepr", ["()", "('Gr\u00fc\u00dfe, 3 \u20ac', '}}')"])
@pytest.mark.parametrize(("own", "then"), [(None, None), (LABEL, {}), (LABEL | ETA, {})])
def test_three_values_are_replaced_where_they_stand(
    store: Bench, own: dict[str, str] | None, then: dict[str, str] | None, argsrepr: str
) -> None:
    add_dead_letter(store, encode(sent(argsrepr, own)))
    expected = sent(argsrepr, then, delivery_tag="0001" + "f" * 28)
    expected["headers"]["retries"] = 0

    assert replay_in_place(store) == (1, [], False)

    left = store.state()
    assert left.pop("{q}:wake") == [b""]
    assert left == {"delayq:queues": {b"q": LAYOUT}, "q\x06\x163": [encode(expected)]}


def test_the_first_that_died_is_the_first_to_run(store: Bench) -> None:
    add_dead_letter(store, *(numbered(n, priority=n % 10) for n in range(20)))

    assert replay_in_place(store, limit=12) == (12, [], True)
    assert replay_in_place(store, DIED + 11.0, token="0000" + "e" * 28) == (8, [], False)

    for name, priorities in {"q": (0, 1, 2), "q\x06\x163": (3, 4, 5), "q\x06\x169": (9,)}.items():
        assert ids_in(store, name) == [str(n) for n in range(20) if n % 10 in priorities]
    tags = [
        decode(each)["properties"]["delivery_tag"]
        for name in ("q", "q\x06\x163", "q\x06\x166", "q\x06\x169")
        for each in store.client.lrange(name, 0, -1)
    ]
    assert len({tag[:16] for tag in tags}) == 20


def test_the_lists_are_those_of_the_queues_own_steps(store: Bench) -> None:
    add_dead_letter(store, *(numbered(n, priority=n) for n in range(4)))

    assert replay_in_place(store, layout=Layout(":", (0, 2))) == (4, [], False)

    assert (ids_in(store, "q"), ids_in(store, "q:2")) == (["0", "1"], ["2", "3"])


def test_the_same_call_again_gives_the_same_answer(store: Bench) -> None:
    add_dead_letter(store, numbered(0), b"{}", numbered(2))

    first = replay_in_place(store, limit=2)
    before = store.state()

    assert first == replay_in_place(store, limit=2) == (1, [b"1"], True)
    assert store.state() == before


def test_what_was_told_is_not_told_again(store: Bench) -> None:
    store.register(QUEUE)
    for n in range(5):
        store.dead_letters.restore(QUEUE, [(str(n), DIED, b"1 %d 0 why\n{}" % DIED)])

    assert replay_in_place(store, limit=3) == (0, [b"0", b"1", b"2"], True)
    assert replay_in_place(store, DIED, b"2", token="e" * 32) == (0, [b"3", b"4"], False)


def test_large_dead_letters_are_fewer_at_once(store: Bench) -> None:
    add_dead_letter(store, *(numbered(n, argsrepr="x" * 600_000) for n in range(5)))

    assert replay_in_place(store) == (2, [], True)


_WRONG = {
    "no message": b"{}",
    "no JSON": b"garbage",
    "nothing": b"",
    "cut off": encode(sent())[:-2],
    "it expires": encode(sent()).replace(b'"expires": null', b'"expires": "2999-01-01"'),
    "its ETA": encode(sent()).replace(b'"eta": null', b'"eta": "2026-01-01"'),
    "budget": encode(sent(own=LABEL | {"budget": ["root", 5]})),
    "context": encode(sent(own={"context": "{}"})),
    "a name twice": encode(sent()).replace(b'"stamps": {}', b'"stamps": {"retries": 3}'),
    "a hidden name": encode(sent()).replace(b'"stamps"', b'"\\u0073tamps"'),
    "compact": json.dumps(sent(), separators=(",", ":")).encode(),
    "no priority": encode(sent()).replace(b'"priority": 3, ', b""),
}


@pytest.mark.parametrize("message", _WRONG.values(), ids=_WRONG)
def test_what_has_to_be_read_is_left_as_it_is(store: Bench, message: bytes) -> None:
    add_dead_letter(store, message)
    before = store.state()

    assert replay_in_place(store) == (0, [b"0"], False)

    assert store.state() == before


def test_what_never_had_a_queue_is_left(store: Bench) -> None:
    add_dead_letter(store, encode(sent()), details=b'{"unbound": "exchange"}')

    assert replay_in_place(store) == (0, [b"0"], False)


def parsed(record: Record, message: bytes) -> Any:
    """Return a message without the values that differ between two ways of changing it."""
    found = json.loads(message)
    found["properties"].pop("delivery_tag")
    if found["properties"].get("delayq") in ({}, {"message_id": record.message_id}):
        del found["properties"]["delayq"]
    return found


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(messages(), st.booleans())
def test_it_is_what_reading_it_would_come_to(
    store: Bench, message: dict[str, Any], compact: bool
) -> None:
    store.client.flushdb()
    store.next_queue()
    add_dead_letter(store, json.dumps(message, separators=(",", ":") if compact else None).encode())
    [dead_lettered] = store.dead_letters.all(QUEUE)

    done, _, _ = replay_in_place(store)
    event(f"{done} ready")

    try:
        dead_letter = DeadLetter.of(QUEUE, dead_lettered)
        entry = replay_entry(dead_letter, Layout(), Due(0), ReplayChanges(), TOKEN, "0" * 32)
    except (RecordError, ValueError):
        assert done == 0
        return
    if done:
        record = Record.unpack(entry.data)
        [name] = store.client.keys("q*")
        [ready] = store.client.lrange(name, 0, -1)
        assert parsed(record, ready) == parsed(record, record.message)
        step = name.rpartition(b"\x16")[2]
        assert record.priority == (0 if step == b"q" else int(step))
    else:
        assert len([*store.dead_letters.all(QUEUE)]) == 1
