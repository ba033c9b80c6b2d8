"""On a Redis Cluster all keys of a script call share a slot."""

from __future__ import annotations

from celery_delayq.store.keys import Keys
from tests.contract.test_script_headers import NAMES, QUEUE, call_of, each_script


@each_script
def test_on_a_cluster_all_keys_of_a_call_begin_with_the_hash_tag(name: str) -> None:
    single = call_of(name).call.keys
    tagged = call_of(name, Keys("shop:").of_tag("dq07-12")).call.keys

    given = {key for key in single if key in tagged}  # keys that the caller passes here
    assert given <= NAMES["unacked"] | NAMES["unacked_index"] | {QUEUE.deliveries, QUEUE.dead}
    assert tagged == [key if key in given else f"shop:{{dq07-12}}:{key}" for key in single]
