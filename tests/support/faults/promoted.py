"""Judge dispatchers by the ready list, without workers."""

from __future__ import annotations

from tests.support.faults.checker import Verdict
from tests.support.faults.leftovers import ready_ids, unfinished_in
from tests.support.faults.stage import Stage

#: A setting with which Redis notes when each entry became ready.
NOTED = {"history": 1}


def promoted(stage: Stage, sent: list[str], strikes: int) -> Verdict:
    """Judge by the current ready list."""
    ready = ready_ids(stage.redis, "celery")
    unfinished = unfinished_in(stage.redis)
    verdict = Verdict(published=len(sent), runs=sum(ready.values()))
    verdict.lost = {
        key: "is nowhere" for key in sent if not any(key in ids for ids in unfinished.values())
    }
    verdict.twice = {key: f"is ready {n} times" for key, n in ready.items() if n > 1}
    verdict.left = dict.fromkeys(unfinished.get("scheduled", ()), "is still scheduled")
    verdict.dead = dict.fromkeys(unfinished.get("dead", ()), "is a dead letter")
    verdict.early = {key: f"by {-late} s" for key, late in lateness(stage).items() if late < 0}
    verdict.notes["strikes"] = str(strikes)
    return verdict


def lateness(stage: Stage) -> dict[str, float]:
    """Return by id how many seconds each entry was late; needs :data:`NOTED`."""
    late = {}
    for id, value in stage.redis.hgetall("{celery}:ready_index").items():
        _, due, _, _, *noted = value.decode().split(" ")
        if noted:
            late[id.decode()] = (int(noted[0]) - int(due)) / 1000
    return late
