"""Gives verdicts on rows that were joined with the queue; runs on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from kombu.utils.json import loads

from celery_delayq.app import DelayQ
from celery_delayq.model.script_values import Location
from celery_delayq.model.unique import Key, rule_of
from celery_delayq.spark.access import open_client
from celery_delayq.spark.executors import Batches, Outcomes
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.write import refused_rows as refusals
from celery_delayq.spark.write.rows import TaskRow, TaskRows
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import batches as chunks

#: States of a task in which its row stays unchanged.
PRESENT_STATES = ("leased", "ready", "retry", "elsewhere", "dead", "finished")

#: States in their order of precedence: if a task has several states, the first one counts.
STATE_RANKS = ("leased", "ready", "retry", "elsewhere", "scheduled", "dead", "finished")

#: Prefix of columns that are added to rows.
OWN_PREFIX = "_delayq_"
ID_COLUMN, VERDICT_COLUMN, WHY_COLUMN = (
    f"{OWN_PREFIX}id",
    f"{OWN_PREFIX}verdict",
    refusals.ERROR_COLUMN,
)

#: Ids per round trip.
_PAGE_IDS = 500


def judge(
    options: WriteOptions, names: Sequence[str], columns: Sequence[str], batches: Batches
) -> Batches:
    """Add verdicts to rows. *names* are all names of the task."""
    for batch in batches:
        yield _judged(options, names, columns, batch)


def _judged(
    options: WriteOptions, names: Sequence[str], columns: Sequence[str], batch: pa.RecordBatch
) -> Any:
    own = {
        name: batch.column(f"{OWN_PREFIX}{name}").to_pylist()
        for name in ("id", "entry", "young", "times", "state", "args", "kwargs", "unique_key")
    }
    etas = batch.column(f"{OWN_PREFIX}eta")
    own["eta"] = etas.cast(pa.timestamp("us", etas.type.tz)).cast(pa.int64()).to_pylist()
    joined_rows: list[dict[str, Any]] = [
        dict(zip(own, cells, strict=True)) for cells in zip(*own.values(), strict=True)
    ]
    verdicts: list[str] = []
    why: list[str | None] = [None] * len(joined_rows)
    open_rows = []
    for place, fields in enumerate(joined_rows):
        state = fields["state"]
        if fields["young"] is None:  # no row
            verdicts.append("orphan" if state in ("scheduled", "elsewhere") else "nothing")
        elif fields["young"]:
            verdicts.append("young")
        elif state in PRESENT_STATES:
            verdicts.append(state)
        else:
            verdicts.append("")
            open_rows.append(place)
    rows = batch.select([*columns]).take(pa.array(open_rows, pa.int64()))
    for place, row in zip(open_rows, TaskRows(options, rows.schema).read(rows), strict=True):
        try:
            verdicts[place] = _verdict(options, names, row, joined_rows[place])
        except (ValueError, TypeError) as exc:
            verdicts[place], why[place] = "refused", str(exc)
    ids = [fields["id"] or fields["entry"] for fields in joined_rows]
    texts = [pa.array(each, pa.string()) for each in (ids, verdicts, why)]
    arrays = [batch.column(name) for name in columns]
    judged_batch = pa.RecordBatch.from_arrays(
        [*arrays, *texts], names=[*columns, ID_COLUMN, VERDICT_COLUMN, WHY_COLUMN]
    )
    return judged_batch.filter(pa.array([verdict != "nothing" for verdict in verdicts]))


def _verdict(
    options: WriteOptions, names: Sequence[str], row: TaskRow, fields: Mapping[str, Any]
) -> str:
    """Return the verdict on a row whose task is missing or scheduled."""
    if row.error:
        raise ValueError(row.error)
    if fields["times"] > 1:
        raise ValueError(f"{options.idcolumn}: {fields['times']} rows have the key of {row.id!r}")
    if fields["state"] is None:
        return "new"
    same = (
        fields["eta"] == row.when
        and loads(fields["args"] or "null") == []
        and loads(fields["kwargs"] or "null") == loads(row.kwargs)
    )
    if same:
        return "kept"
    key = {"unique_key": Key(row.key), "on_conflict": "replace", "unique_scope": "done"}
    rules = [rule_of(name, None, {**key, "max_wait": None}) for name in names]
    keys = {rule.key(row.key)[1:] for rule in rules if rule is not None}
    return "changed" if fields["unique_key"] in keys else "foreign"


def drop_present_rows(options: WriteOptions, queue: str, batches: Batches) -> Batches:
    """Drop new rows whose task has appeared during the job.

    A message that a worker took from a ready list during the read may be missing in all tables.
    """
    with open_client(options.access) as delayq:
        for full_batch in batches:
            for start in range(0, full_batch.num_rows, _PAGE_IDS):
                batch = full_batch.slice(start, _PAGE_IDS)
                ids = batch.column(ID_COLUMN).to_pylist()
                found = delayq.session.ask(partial(_found, queue, ids))
                known = {place.name.partition("\0")[0] for place in found}
                pairs = zip(ids, batch.column(VERDICT_COLUMN).to_pylist(), strict=True)
                wanted = [verdict != "new" or id not in known for id, verdict in pairs]
                yield batch.filter(pa.array(wanted, pa.bool_()))


def _found(queue: str, ids: Sequence[str], stores: Stores) -> list[Location]:
    return stores.of(queue).control.find(queue, ids)


def cancel(ready: bool, delayq: DelayQ, batches: Batches) -> Outcomes:
    """Cancel tasks by their ids, with *ready* also ready tasks."""
    number = 0
    for batch in batches:
        for some in chunks(batch.column(0).to_pylist(), _PAGE_IDS):
            outcomes = delayq.cancel_ids(some, reason="reconciled", ready=ready)
            number += sum(map(bool, outcomes))
    return Outcomes({"cancelled": number})
