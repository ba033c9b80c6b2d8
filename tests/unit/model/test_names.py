"""Names of queues that would be keys of our own."""

from dataclasses import fields
from inspect import isfunction

from celery_delayq.model.names import QUEUE_KEYS
from celery_delayq.store.keys import QueueKeys


def test_the_names_kept_for_our_keys_are_those_of_the_store() -> None:
    own = {each.name for each in fields(QueueKeys)} - {"own"}
    with_argument = {name for name in vars(QueueKeys) if isfunction(getattr(QueueKeys, name))}
    assert own | {name for name in with_argument if name[0] != "_"} == QUEUE_KEYS
