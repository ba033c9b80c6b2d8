"""A matrix of facts, and the answer that each of them must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import combinations, product
from math import inf
from typing import Any, get_args

import pytest

from celery_delayq.admin.why.reasons import (
    EntryFacts,
    GoneFacts,
    Reason,
    ReasonKind,
    Why,
    why_gone,
    why_waiting,
)
from celery_delayq.model.dead_letter import DeadLetter, DeadLetterRecord
from celery_delayq.model.history import Run
from celery_delayq.model.scheduled import ScheduledTask, moment
from celery_delayq.model.script_values import State
from celery_delayq.settings import Limits
from celery_delayq.store.task_limits import StoredLimit
from celery_delayq.store.waits import LaneWaits, Waits, lease_now

K = ReasonKind
NOW = 1_900_000_000_000
LEASE = 30.0
#: Names that no terminal and no line may be steered by.
TASK, QUEUE, WORKER = "shop.\x1b[2Jmail", "ma\nil", "one\x07"

#: Due of an entry.
DUES = {"later": NOW + 10_000, "now": NOW, "before": NOW - 10_000}
#: Paused queue and paused task.
PAUSES = {"none": (None, None), "queue": (NOW - 5, None), "both": (NOW - 5, NOW - 4)}
PAUSES["task"] = (None, NOW - 4)
#: Last look of a dispatcher.
LOOKS = {"fresh": NOW - 900, "old": NOW - 12_000, "never": None}
#: Headers of a message.
HEADERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "retry": {"retries": 2, "parent_id": "parent"},
    "expires": {"expires": moment(NOW - 1).isoformat(), "retries": 0},
    "unreadable": {"expires": "soon", "retries": "many", "root_id": "it"},
}
#: Lane of a held entry, with the kinds that it adds.
RULE = StoredLimit("600000 1 2 0")
LANES = {
    "may go": LaneWaits(3, 0, NOW - 1.0, RULE),
    "rate": LaneWaits(41, 1, NOW + 500.0, RULE),
    "permits": LaneWaits(41, 2, inf, RULE, frozenset({"parent", "it"})),
    "removed": LaneWaits(0, 0, None, StoredLimit()),
}
LEASES = {"extended": NOW + 28_000, "ended": NOW - 9_000, "longer": NOW + 300_000, "none": None}


def entry(state: State, due_ms: int, headers: Mapping[str, Any]) -> ScheduledTask:
    own = {"limit": "one%20call:ada%2F1 0"} if state == "held" else {}
    message = {"headers": {"id": "it", **headers}, "properties": {"delayq": own}}
    worker = WORKER if state == "running" else ""
    return ScheduledTask("it", TASK, QUEUE, state, moment(due_ms), 0, "", worker, message, "it")


def matrix() -> Iterator[tuple[Any, ...]]:
    """Yield the names of all facts of an entry."""
    for state in get_args(State):
        yield from product(
            [state],
            DUES if state == "scheduled" else ["before"],
            PAUSES,
            LOOKS,
            HEADERS,
            [False, True],  # revoked
            [False, True] if state in ("ready", "held") else [False],  # a process has a lease
            [None, (), ("one",)] if state in ("ready", "held") else [None],  # consumers
            LANES if state == "held" else [None],
            LEASES if state == "running" else [None],
            [None, 2] if state == "ready" else [None],  # deaths
            [False, True] if state == "scheduled" else [False],  # promote_rate and max_ready
        )


def facts_of(given: tuple[Any, ...]) -> EntryFacts:
    state, due, pause, look, headers, revoked, has_lease, asked, lane, lease, deaths, slow = given
    queue_paused, task_paused = PAUSES[pause]
    waits = Waits(
        NOW,
        LOOKS[look],
        NOW,
        queue_paused,
        task_paused,
        NOW - 3 if revoked else None,
        12_001 if state == "ready" else 7,
        has_lease,
        4,
        LEASES[lease] if lease else None,
        deaths,
        LANES[lane] if lane else None,
    )
    limits = Limits(promote_rate=2.5, max_ready=7) if slow else Limits(max_ready=8)
    task = entry(state, DUES[due], HEADERS[headers])
    return EntryFacts(task, DUES[due], waits, limits, LEASE, asked)


def expected(given: tuple[Any, ...]) -> set[ReasonKind]:
    """Return the kinds of the answer, each by its own rule."""
    state, due, pause, look, headers, revoked, has_lease, asked, lane, lease, deaths, slow = given
    waits, is_due = state != "running", due != "later"
    free = pause == "none" and lane not in ("rate", "permits")
    promotes = state == "scheduled" and is_due and pause == "none"
    rules = {
        K.NOT_DUE: state == "scheduled" and not is_due,
        K.OVERDUE: promotes,
        K.RETRY: headers == "retry",
        K.QUEUE_PAUSED: waits and pause in ("queue", "both"),
        K.TASK_PAUSED: waits and pause in ("task", "both"),
        K.RESUMED: state == "paused" and pause in ("none", "queue"),
        K.LIMIT: state == "held",
        K.PARENT_HAS_PERMIT: lane == "permits" and headers == "retry",
        K.MAX_READY: promotes and slow,
        K.PROMOTE_RATE: promotes and slow,
        K.NO_DISPATCHER: look != "fresh" and (state in ("scheduled", "paused") or lease == "ended"),
        K.READY: state == "ready" and deaths is None,
        K.NO_CONSUMER: state in ("ready", "held") and free and not has_lease and asked == (),
        K.QUARANTINED: deaths is not None,
        K.LEASED: state == "running" and lease != "ended",
        K.LEASE_ENDED: lease == "ended",
        K.REVOKED: revoked,
        K.EXPIRED: headers == "expires",
    }
    return {kind for kind, holds in rules.items() if holds}


def texts_of(answer: Why) -> list[str]:
    return [reason.text for reason in answer.reasons]


def test_each_combination_of_facts_has_its_reasons() -> None:
    number, seen = 0, set[ReasonKind]()
    for given in matrix():
        answer = why_waiting(facts_of(given))
        kinds = [reason.kind for reason in answer.reasons]
        assert len(kinds) == len({*kinds}) > 0, given
        assert {*kinds} == expected(given), given
        if K.NOT_DUE in kinds:
            assert kinds[0] is K.NOT_DUE, given
        number, seen = number + 1, seen | {*kinds}

    assert number > 2_500
    assert {*K} - seen == {K.CANCELLED, K.DEAD, K.ENDED, K.UNKNOWN}


#: Reasons of which one answer has at most one: a task has one place, and a place has one state.
EXCLUSIVE: list[set[ReasonKind]] = [
    *map(set, combinations([K.NOT_DUE, K.OVERDUE, K.READY, K.LIMIT, K.LEASED], 2)),
    {K.LEASED, K.LEASE_ENDED},
    {K.READY, K.QUARANTINED},
    {K.TASK_PAUSED, K.RESUMED},
    *({K.LEASED, each} for each in (K.QUEUE_PAUSED, K.TASK_PAUSED, K.NO_CONSUMER, K.NO_DISPATCHER)),
    *({K.NOT_DUE, each} for each in (K.MAX_READY, K.PROMOTE_RATE, K.NO_CONSUMER)),
    *({K.OVERDUE, each} for each in (K.QUEUE_PAUSED, K.TASK_PAUSED, K.QUARANTINED)),
]

#: Sentences that contradict each other.
CONTRADICTIONS = [
    ("no worker runs it", "Worker .* ha[sd] it"),
    ("No worker consumes", "Worker .* ha[sd] it"),
    ("has been due", "is due at"),
]


def test_no_answer_contradicts_itself() -> None:
    for given in matrix():
        answer = why_waiting(facts_of(given))
        kinds = {reason.kind for reason in answer.reasons}
        assert not [pair for pair in EXCLUSIVE if pair <= kinds], given
        for one, other in CONTRADICTIONS:
            said = [each for each in (one, other) if re.search(each, answer.text)]
            assert len(said) < 2, (given, answer.text)
        if answer.state == "running":
            assert answer.reasons[0].kind in (K.LEASED, K.LEASE_ENDED), given


def test_each_sentence_is_whole_and_safe() -> None:
    for given in matrix():
        answer = why_waiting(facts_of(given))
        for text in texts_of(answer):
            assert text.isprintable(), (given, text)
            assert re.fullmatch(r"[A-Z].*[.]", text), (given, text)
            assert "None" not in text, (given, text)
        told = json.loads(json.dumps(answer.as_dict()))
        assert [each["text"] for each in told["reasons"]] == texts_of(answer)


FRESH = Waits(NOW, NOW - 100, NOW)
LATER = NOW + 10_800_000

SENTENCES: dict[str, tuple[EntryFacts, str]] = {
    "later": (
        EntryFacts(entry("scheduled", LATER, {}), LATER, FRESH),
        f"It is due at {moment(LATER).isoformat()}, in 3h.",
    ),
    "ready": (
        EntryFacts(entry("ready", NOW, {}), NOW, FRESH._replace(ready=12_001)),
        "It is ready: at most 12,000 messages of its queue are ahead.",
    ),
    "ready, and first": (
        EntryFacts(entry("ready", NOW, {}), NOW, FRESH._replace(ready=1)),
        "It is ready, and the next one of its queue.",
    ),
    "leased": (
        EntryFacts(entry("running", NOW, {}), NOW, FRESH._replace(lease_ends_ms=NOW + 28_000)),
        r"Worker one\x07 has it, and runs it or is about to. Its lease was extended 2s ago and "
        "ends in 28s.",
    ),
    "just leased": (  # a first lease is a hundredth longer
        EntryFacts(entry("running", NOW, {}), NOW, FRESH._replace(lease_ends_ms=NOW + 30_300)),
        r"Worker one\x07 has it, and runs it or is about to. Its lease was extended 0s ago and "
        "ends in 30s.",
    ),
    "limit": (
        EntryFacts(entry("held", NOW, {}), NOW, FRESH._replace(lane=LANES["permits"])),
        "Limit one call holds it: at most 41 of key ada/1 are ahead. Workers have 2 of at most 2 "
        "at once.",
    ),
    "limit, and first": (
        EntryFacts(
            entry("held", NOW, {}), NOW, FRESH._replace(lane=LANES["permits"]._replace(ahead=0))
        ),
        "Limit one call holds it: none of key ada/1 is ahead. Workers have 2 of at most 2 at once.",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence(name: str) -> None:
    facts, sentence = SENTENCES[name]

    assert why_waiting(facts).text == sentence


def dead_letter(reason: str = "failed: \x1b[2J") -> DeadLetter:
    message = json.dumps({"headers": {"id": "it", "task": TASK}, "properties": {}}).encode()
    return DeadLetter.of(QUEUE, DeadLetterRecord.of("it", NOW, reason, message, b""))


def run(state: str, started: datetime | None) -> Run:
    at = moment(NOW)
    return Run("1-0", "it", TASK, QUEUE, WORKER, None, None, started, at, state, 1, 1, "Oh: no")


#: What is known of an id without an entry: its dead letters, cancelled messages, revoke, runs.
DEAD = {"none": [], "one": [dead_letter()]}
CANCELLED = {"none": [], "one": [(QUEUE, TASK)]}
RUNS = {"none": [], "ran": [run("SUCCESS", moment(NOW - 1)), run("RETRY", None)]}
RUNS["not begun"] = [run("REVOKED", None)]


@pytest.mark.parametrize(
    ("dead", "cancelled", "revoked", "runs", "searched"),
    [*product(DEAD, CANCELLED, [None, NOW], RUNS, [0, 10_000])],
)
def test_an_id_without_an_entry(
    dead: str, cancelled: str, revoked: int | None, runs: str, searched: int
) -> None:
    facts = GoneFacts("it", DEAD[dead], CANCELLED[cancelled], revoked, RUNS[runs], searched)
    answer = why_gone(facts)

    kinds = [reason.kind for reason in answer.reasons]
    there = {
        K.DEAD: dead != "none",
        K.CANCELLED: cancelled != "none",
        K.ENDED: runs != "none",
        K.REVOKED: revoked is not None,
    }
    order = [kind for kind, is_there in there.items() if is_there]
    states = {K.DEAD: "dead", K.CANCELLED: "cancelled", K.ENDED: "ended", K.REVOKED: "revoked"}
    assert kinds == (order or [K.UNKNOWN])
    assert answer.state == (states[order[0]] if order else "unknown")
    assert answer.is_known is bool(order)
    assert (answer.task, answer.queue) == (
        (TASK, QUEUE) if {*order} - {K.REVOKED} else (None, None)
    )
    assert all(text.isprintable() and "None" not in text for text in texts_of(answer))
    assert json.loads(json.dumps(answer.as_dict()))["state"] == answer.state


def test_a_time_is_shown_as_the_caller_wants() -> None:
    reason = Reason(K.REVOKED, {"since": moment(NOW)})

    assert (
        reason.sentence(lambda time: f"{time:%Y}") == "It was revoked at 2030: no worker runs it."
    )


def test_lease_time_stands_still_over_a_gap() -> None:
    assert lease_now(NOW, NOW - 10_000, 7) == NOW - 7
    assert lease_now(NOW, NOW - 10_001, 7) == NOW - 10_001 - 7
    assert lease_now(NOW, NOW + 1, 0) == NOW + 1
    assert lease_now(NOW, None, 0) == NOW
