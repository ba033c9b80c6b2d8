"""All keys of model and Redis in one form, to compare."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from celery_delayq.model.dead_letter import DeadLetterRecord
from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import LARGE_MESSAGE_BYTES, Record, task_field
from celery_delayq.model.script_values import PAUSED_OFFSET_MS
from celery_delayq.store.keys import Keys, Layout
from tests.support.model_queue import Leased, QueueModel
from tests.support.model_schedule import ModelDeadLetter, digest
from tests.support.model_tracking import Owner, Scheduled, Tracked, about

_TRACKED = re.compile(rb"(!*\S+) (\d+) (.*)", re.DOTALL)


def state_of(model: QueueModel) -> dict[str, Any]:
    """Return the expected result of :func:`observed`."""
    keys = Keys()
    key = keys.queue(model.name)
    name = model.name.encode()
    paused_due = {one: entry for one, entry in model.scheduled.items() if entry.paused_due}
    values: dict[str, Any] = {
        keys.next_due: {name: about(model.next_due)} if model.next_due is not None else None,
        keys.queues: {name: model.layout.text.encode()} if model.registered else None,
        keys.lease_ends: {name: _minutes(model, model.lease_ends)}
        if model.lease_ends is not None
        else None,
        keys.control: _control(model),
        key.due: {
            n.encode(): e.due + PAUSED_OFFSET_MS * e.paused_due for n, e in model.scheduled.items()
        },
        key.entries: {n.encode(): e.record for n, e in model.scheduled.items()},
        key.tasks: {_member(n, entry): 0 for n, entry in model.scheduled.items()},
        key.paused_due: {_member(n, entry): 0 for n, entry in paused_due.items()},
        key.duplicate_ids: {n.encode(): 0 for n in model.duplicate_ids},
        key.ready_index: _tracked(model.waiting),
        key.leased_index: _tracked(model.running),
        key.unique: {n.encode(): owner for n, owner in model.owners.items()},
        key.leases: {who.encode(): _minutes(model, end) for who, end in model.ends.items()},
        key.deliveries: {
            digest(message).encode(): b"%d %d %d" % count for message, count in model.counts.items()
        },
        key.quarantined: [b"%d\n%b" % one for one in reversed(model.quarantined)],
        key.request_numbers: {who.encode(): b"%d" % n for who, n in model.request_numbers.items()},
        key.quarantine_turn: model.turn.encode() if model.turn is not None else None,
        key.dead: sorted(model.dead),
        key.dead_at: sorted(dead_letter.id for dead_letter in model.dead),
        key.wake: [b""] if model.marker else None,
    }
    for step in model.layout.steps:
        values[keys.ready(model.name, step, model.layout)] = model.ready.get(step, [])[::-1]
    for who, mine in model.leased.items():
        values[key.leased(who).decode()] = {
            name.encode(): _value(leased) for name, leased in mine.items()
        }
    return {name: value for name, value in values.items() if value}


def observed(name: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot with leases in minutes, in the form of :func:`state_of`."""
    keys, key = Keys(), Keys().queue(name)
    shown = dict(state)
    if key.dead in shown:
        dead_letters = shown[key.dead]
        assert set(dead_letters) == set(shown[key.dead_at])
        shown[key.dead] = sorted(_dead_letter(id, data) for id, data in dead_letters.items())
        shown[key.dead_at] = sorted(dead_letter.id for dead_letter in shown[key.dead])
    if keys.next_due in shown:
        shown[keys.next_due] = {name: about(due) for name, due in shown[keys.next_due].items()}
    if keys.control in shown:
        shown[keys.control] = {
            name: since if name == b"revision" else b""
            for name, since in shown[keys.control].items()
        }
    for index in (key.ready_index, key.leased_index):
        if index in shown:
            shown[index] = {name: _about(value) for name, value in shown[index].items()}
    if key.entries in shown:
        records = {name: Record.unpack(data) for name, data in shown[key.entries].items()}
        shown[key.entries] = records
    if key.unique in shown:
        shown[key.unique] = {name: _owner(value) for name, value in shown[key.unique].items()}
    return shown


def messages_in(name: str, layout: Layout, state: dict[str, Any]) -> Counter[bytes]:
    """Return each message in a snapshot, in any state."""
    key = Keys().queue(name)
    found: Counter[bytes] = Counter()
    for where, value in state.items():
        if where in Keys().ready_lists(name, layout):
            found.update(value)
        elif where == key.entries:
            found.update(Record.unpack(data).message for data in value.values())
        elif where.startswith(key.leased("").decode()):
            found.update(split_leased(data)[1] for data in value.values() if data)
        elif where == key.dead:
            found.update(DeadLetterRecord.unpack("", data).message for data in value.values())
        elif where == key.quarantined:
            found.update(data.partition(b"\n")[2] for data in value)
    return found


def _minutes(model: QueueModel, end: int) -> int:
    return round((end - model.now) / 60)


def _control(model: QueueModel) -> dict[bytes, bytes]:
    if not model.revision:
        return {}
    fields = {f"t{task_field(task)}".encode(): b"" for task in model.paused}
    if model.queue_paused:
        fields[f"q{model.name}".encode()] = b""
    return fields | {b"revision": b"%d" % model.revision}


def _tracked(index: dict[str, Tracked]) -> dict[bytes, bytes]:
    return {name.encode(): _about(one.value) for name, one in index.items()}


def _about(value: bytes) -> bytes:
    match = _TRACKED.fullmatch(value)
    assert match is not None, value
    return b"%b %d %b" % (match[1], about(int(match[2])), match[3])


def _owner(value: bytes) -> Owner:
    since, _, name = value.decode().partition("=")
    id, _, message_id = name.partition("\0")
    return Owner(id, message_id, since != "")


def _member(name: str, entry: Scheduled) -> bytes:
    return f"{task_field(entry.record.task)}\0{entry.due:015d}\0{name}".encode()


def _value(leased: Leased) -> bytes:
    if leased.message is None:
        return b""
    if (
        not leased.alone
        and leased.step == 0
        and len(leased.message) >= LARGE_MESSAGE_BYTES
        and leased.message[:1] == b"{"
    ):
        return leased.message
    return b"%d%b\n%b" % (leased.step, b"!" if leased.alone else b"", leased.message)


def _dead_letter(id: bytes, data: bytes) -> ModelDeadLetter:
    found = DeadLetterRecord.unpack(id.partition(b"\0")[0].decode(), data)
    reason = "skipped" if found.reason.startswith("skipped: ") else found.reason
    return ModelDeadLetter(found.id, reason, found.message, found.details)
