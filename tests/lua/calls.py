"""Calls of scripts whose tests are elsewhere: see tests/contract/test_script_headers.py."""

from __future__ import annotations

from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.repair_tracking import Tracked
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.task_limits import StoredLimit
from tests.lua.bench import DATA, Calls

LIST = Keys().ready("q", 3, Layout())
TRACKED = Tracked(b"id", b"m1 5 - task")


def drop_cancelled(keys: Keys) -> Call:
    key = keys.queue("q")
    all_keys = [*key.state, keys.ready("q", 3, Layout()), key.turning(LIST)]
    return Call("repair/drop_cancelled", all_keys, [5, 1, 1, *TRACKED, b"{}"])


SCRIPT_CALLS: Calls = {
    "dispatch/planned_looks": (
        lambda s: s.announce_missing([("q", Layout())], 5),
        [0, [b"7", b"7", 0]],
    ),
    "dispatch/wake_ready": (lambda s: s.run(s.wake_ready_call("q", Layout())), 1),
    "limits/wake_lanes": (
        lambda s: s.run_steps(s.task_limits.wake_lanes_steps("q", "api")),
        b"",
    ),
    "limits/change": (
        lambda s: s.task_limits.change("api", StoredLimit("0 1 2 0"), StoredLimit("0 1 1 0")),
        1,
    ),
    "limits/forgotten_lanes": (
        lambda s: s.repair_tracking.check_forgotten_lanes("q", 0, repair=True),
        [b"0", 1, [], [b"forgotten_lane", 1, 1, b"api:"]],
    ),
    "dispatch/resign": (lambda s: s.resign("me"), 1),
    "scan/hash_scan": (lambda s: [*s.scan.fields("{q}:dead")], [b"0", b"2 3", b"idone"]),
    "scan/hash_values": (lambda s: s.scan.values("{q}:dead", [b"id"]), [b"3", b"one"]),
    "scan/list_range": (
        lambda s: [*s.scan.messages(s.keys.ready("q", 3, s.layout), 0, 1, 1)],
        [b"2", b"{}"],
    ),
    "repair/drop_cancelled": (lambda s: s.run(drop_cancelled(s.keys)), 4),
    "leases/release_quarantined": (
        lambda s: s.repair.release_quarantined("q", Layout()),
        [1, 0],
    ),
    "leases/forget_empty": (lambda s: s.repair.forget_empty_leases("q", ["me"]), 0),
    "leases/forget_counts": (
        lambda s: s.run(Call("leases/forget_counts", ["{q}:deliveries"], ["d", "1"])),
        1,
    ),
    "repair/due": (lambda s: s.repair.check_due("q", 0, repair=True), [b"0", 0, []]),
    "repair/entries": (lambda s: s.repair.check_entries("q", 0, repair=True), [b"0", 0, []]),
    "repair/gone": (
        lambda s: s.repair_tracking.check_gone("q", ["me"], [TRACKED], repair=True),
        [b"0", 1, []],
    ),
    "repair/index": (
        lambda s: s.repair.check_index("q", 0, repair=True),
        [b"0", 1, [b"left"], [b"misindexed", 1, 1, b"left"]],
    ),
    "repair/lanes": (
        lambda s: s.repair_tracking.check_lanes("q", 0, repair=True),
        [b"0", 1, [b"left"], [b"misplaced_held", 1, 1, b"left"]],
    ),
    "repair/permits": (
        lambda s: s.repair_tracking.check_permits_of("q", [(b"api:", b"id", b"m1")], repair=True),
        [b"0", 1, []],
    ),
    "limits/without_permits": (
        lambda s: s.run(s.task_limits.without_permits_call("q", "me")),
        [b"api"],
    ),
    "repair/leases": (
        lambda s: s.repair.check_leases("q", ["me"], 1.0, repair=True),
        [b"0", 1, []],
    ),
    "repair/dead_letters": (
        lambda s: s.repair.check_dead_letters("q", 0, repair=True),
        [b"0", 0, []],
    ),
    "repair/queue": (
        lambda s: s.repair.check_queue("q", Layout(), 1.0, repair=True),
        [b"0", 1, []],
    ),
    "repair/periodic": (lambda s: s.repair.check_periodic("", 0, repair=True), [b"0", 1, []]),
    "repair/schedule": (lambda s: s.repair.check_schedule("q", {b"id": DATA}), [b"0", 1, []]),
    "repair/totals": (
        lambda s: s.repair_tracking.check_totals("q", Layout(), ["me"], repair=True),
        [b"0", 0, []],
    ),
    "repair/types": (lambda s: s.repair_types(), []),
    "repair/tracking": (
        lambda s: s.repair_tracking.check_leased("q", 0, repair=True),
        [b"0", 0, []],
    ),
}
