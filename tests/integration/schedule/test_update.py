"""``update``: a scheduled task gets other arguments and options, in the encoding of its message."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task
from kombu.serialization import registry
from redis import Redis

from celery_delayq import DelayQ, Limit, Outcome
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import (
    ConfigError,
    DelayQError,
    InvalidLimit,
    InvalidOption,
    InvalidUnique,
    RecordError,
)
from celery_delayq.model.changes.body import Body
from celery_delayq.model.envelope import (
    Record,
    due_of_eta,
    limit_of,
    own_of,
)
from celery_delayq.model.limits.of_app import AppLimits
from celery_delayq.testing import wait_until
from tests.apps.update_tasks import SERIALIZERS, register_auth, tasks_of
from tests.integration.conftest import MakeApp, stored
from tests.support import TIMEOUT
from tests.support.keyspace import snapshot
from tests.support.scene import StartWorker, start_worker

FAR = dt.datetime(2100, 1, 31, 9, tzinfo=dt.timezone.utc)
COMPRESSIONS = ("plain", "gzip", "bzip2")

serializers = pytest.mark.parametrize("serializer", SERIALIZERS)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key and its certificate."""
    cryptography = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    name = cryptography.Name([cryptography.NameAttribute(cryptography.NameOID.COMMON_NAME, "shop")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        cryptography.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("keys")
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(text)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    return folder


@pytest.fixture
def signing(keys: Path) -> Iterator[None]:
    """Let this process sign and verify messages."""
    register_auth(keys)
    yield
    if "auth" in registry.name_to_type:
        registry.unregister("auth")


@pytest.fixture
def note(app: Celery) -> Any:
    return tasks_of(app).tasks["note"]


def send(task: Task, id: str = "a", **options: Any) -> None:
    """Send a task with arguments that are to be changed."""
    options = {"args": ("old",), "kwargs": {"text": "old"}, **options}
    task.apply_async(eta=FAR, task_id=id, **options)


# -- what the message is afterwards

#: By name: changes, and what a task has that is sent with them.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "args": ({"args": ["new"]}, {"args": ("new",)}),
    "kwargs": ({"kwargs": {"text": "new"}}, {"kwargs": {"text": "new"}}),
    "no kwargs": ({"args": ("new",), "kwargs": {}}, {"args": ("new",), "kwargs": {}}),
    "priority": ({"priority": 7}, {"priority": 7}),
    "expires": ({"expires": FAR}, {"expires": FAR}),
    "no expiry": ({"expires": False}, {"expires": None}),
    "headers": (
        {"headers": {"tenant": "b", "old": None, "new": [1]}},
        {"headers": {"tenant": "b", "new": [1]}},
    ),
    "all": (
        {"args": ["ö"], "kwargs": {"text": "new"}, "priority": 9, "headers": {"tenant": "c"}},
        {
            "args": ("ö",),
            "kwargs": {"text": "new"},
            "priority": 9,
            "headers": {"tenant": "c", "old": 1},
        },
    ),
    "large": ({"args": ["x" * 100_000]}, {"args": ("x" * 100_000,)}),
}


def seen(redis: Redis) -> tuple[Any, ...]:
    """Return the only message, decoded, without what differs between two messages."""
    [message] = stored(redis)
    body = Body.of(message, unpickle=True)
    properties = message.pop("properties")
    message.pop("body")
    own = dict(own_of(properties))
    id, _, rest = own.pop("label").split(" ", 2)
    own.pop("task", None)
    for name in ("delivery_tag", "delayq", "reply_to", "expiration"):
        properties.pop(name, None)
    message["headers"].pop("origin")
    return body._replace(args=[*body.args]), message, properties, own, id, rest


@serializers
@pytest.mark.parametrize(
    ("change", "compression"),
    [*((change, "plain") for change in CHANGES), *(("all", each) for each in COMPRESSIONS[1:])],
)
def test_a_changed_message_is_as_if_it_had_been_sent_so(
    delayq: DelayQ,
    note: Any,
    redis: Redis,
    request: pytest.FixtureRequest,
    serializer: str,
    change: str,
    compression: str,
) -> None:
    if serializer == "auth":
        request.getfixturevalue("signing")
    changes, others = CHANGES[change]
    options: dict[str, Any] = {
        "args": ("old",),
        "kwargs": {"text": "old"},
        "serializer": serializer,
        "compression": None if compression == "plain" else compression,
        "headers": {"tenant": "a", "old": 1},
        "expires": FAR - dt.timedelta(days=1),
        "link": None if serializer == "yaml" else note.s("linked"),  # Celery cannot either
        "priority": 3,
    }
    send(note, **{**options, **others})
    expected, keys = seen(redis), snapshot(redis)
    redis.flushdb()
    send(note, **options)

    assert delayq.update("a", **changes, unpickle=serializer == "pickle") is Outcome.DONE

    assert seen(redis) == expected
    found = snapshot(redis)
    for key in ("{celery}:due", "{celery}:tasks", "delayq:next_due"):
        assert found[key] == keys[key]
    [data] = redis.hvals("{celery}:entries")
    [sent] = keys["{celery}:entries"].values()
    assert Record.unpack(data).priority == Record.unpack(sent).priority
    assert data.startswith(b"{") == sent.startswith(b"{")


@pytest.mark.usefixtures("signing")
def test_workers_run_what_was_changed_and_what_is_linked_to_it(
    delayq: DelayQ, note: Any, redis: Redis, keys: Path, delayq_worker: StartWorker
) -> None:
    ids = [f"{serializer}-{how}" for serializer in SERIALIZERS for how in COMPRESSIONS]
    for id in ids:
        serializer, compression = id.split("-")
        options: dict[str, Any] = {"serializer": serializer}
        if serializer != "yaml":  # which Celery cannot encode with a link
            options["link"] = note.app.tasks["follow"].s()
        if compression != "plain":
            options["compression"] = compression
        send(note, id, **options)
        changes: dict[str, Any] = {"args": [f"new {id}"], "priority": 9, "headers": {"tenant": "t"}}
        unpickle = serializer == "pickle"
        assert delayq.update(id, **changes, expires=900, unpickle=unpickle) is Outcome.DONE
        assert delayq.run_now(id) is Outcome.DONE

    start_worker(
        delayq_worker,
        "update_tasks",
        "threads",
        conf={"keys": str(keys)},
        concurrency=2,
        env={"C_FORCE_ROOT": "1"},  # to Celery, pickle is one
    )
    with_links = [id for id in ids if not id.startswith("yaml")]
    number = len(ids) + len(with_links)
    wait_until(lambda: redis.llen("log") >= number, TIMEOUT, "all runs")

    runs = [json.loads(each) for each in redis.lrange("log", 0, -1)]
    linked = [run["key"] for run in runs if run["id"] == "linked"]
    runs = sorted((run for run in runs if run["id"] != "linked"), key=lambda run: run["id"])
    assert sorted(linked) == sorted(f"new {id}" for id in with_links)
    assert [run.pop("id") for run in runs] == sorted(ids)
    for run, id in zip(runs, sorted(ids), strict=True):
        assert run.pop("expires")
        assert due_of_eta(run.pop("eta")) == due_of_eta(FAR)
        assert run == {
            "key": f"new {id}",
            "text": "old",
            "argsrepr": f"('new {id}',)",
            "priority": 9,
            "tenant": "t",
        }


def test_hidden_arguments_stay_hidden(delayq: DelayQ, note: Any, redis: Redis) -> None:
    send(note, argsrepr="(…)", kwargsrepr="a secret")

    assert delayq.update("a", args=["password"]) is Outcome.DONE

    [message] = stored(redis)
    assert message["headers"]["argsrepr"] == "…"
    assert message["headers"]["kwargsrepr"] == "a secret"


def test_seconds_until_it_expires_count_from_now(delayq: DelayQ, note: Any, redis: Redis) -> None:
    send(note)
    before = dt.datetime.now(dt.timezone.utc)

    assert delayq.update("a", expires=60) is Outcome.DONE

    [message] = stored(redis)
    at = dt.datetime.fromisoformat(message["headers"]["expires"])
    assert 60 <= (at - before).total_seconds() < 60 + TIMEOUT
    assert message["properties"]["expiration"] == "60000"


def test_parts_that_need_no_decoding_are_changed_whatever_the_arguments_are(
    delayq: DelayQ, note: Any
) -> None:
    send(note, serializer="pickle")

    assert delayq.update("a", priority=9, expires=60, headers={"x": 1}) is Outcome.DONE


# -- what is refused


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


#: Changes, the error, and what its text says.
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ConfigError, "without a change: give args"),
    ({"unpickle": True}, ConfigError, "without a change"),
    ({"args": "new"}, ConfigError, "args='new': expected a list"),
    ({"args": 5}, ConfigError, "args=5: expected a list"),
    ({"kwargs": [1]}, ConfigError, r"kwargs=\[1\]: expected arguments by name"),
    ({"kwargs": {1: 2}}, ConfigError, "kwargs=.1: 2.: expected arguments by name"),
    ({"args": ["a", "b"]}, ConfigError, "note: args=.*does not take the arguments: too many"),
    ({"kwargs": {"txt": "a"}}, ConfigError, "unexpected keyword argument 'txt'"),
    ({"kwargs": {"key": "b"}}, ConfigError, r"positional arguments stay unless args=\[\]"),
    ({"args": []}, ConfigError, "missing a required argument: 'key'"),
    ({"priority": "high"}, InvalidOption, "priority='high': expected a whole number"),
    ({"priority": -1}, InvalidOption, "priority=-1"),
    ({"priority": True}, InvalidOption, "priority=True"),
    ({"expires": "soon"}, InvalidOption, "expires='soon': expected a number of seconds"),
    ({"expires": float("nan")}, InvalidOption, "expires=nan"),
    ({"expires": True}, InvalidOption, "expires=True"),
    ({"expires": [5]}, InvalidOption, r"expires=\[5\]: expected a number of seconds"),
    ({"headers": [1]}, ConfigError, r"headers=\[1\]: expected headers by name"),
    ({"headers": {"id": "b"}}, ConfigError, "expected other names than id"),
    ({"headers": {"compression": "x"}}, ConfigError, "expected other names than compression"),
    ({"headers": {"x": Odd()}}, ConfigError, r"headers\['x'\]=<odd>: expected JSON"),
    ({"if_eta": "soon", "args": ["a"]}, DelayQError, "if_eta='soon'"),
]


def test_an_argument_that_had_a_name_needs_both_kinds(delayq: DelayQ, note: Any) -> None:
    note.apply_async(kwargs={"key": "a"}, countdown=60, task_id="a")

    with pytest.raises(ConfigError, match=r"named arguments stay unless kwargs=\{\}"):
        delayq.update("a", args=["b"])
    assert delayq.update("a", args=["b"], kwargs={})


@pytest.mark.parametrize(
    ("changes", "error", "text"), REFUSED, ids=[repr(changes) for changes, _, _ in REFUSED]
)
def test_a_wrong_change_is_refused_and_changes_nothing(
    delayq: DelayQ,
    note: Any,
    redis: Redis,
    changes: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    send(note)
    before = snapshot(redis)

    with pytest.raises(error, match=text):
        delayq.update("a", **changes)
    assert snapshot(redis) == before


@serializers
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"args": [lambda: None]}, r"args\[0\]=<function"),
        ({"args": ["a"], "kwargs": {"text": threading.Lock()}}, r"kwargs\['text'\]=<unlocked"),
    ],
    ids=["args", "kwargs"],
)
def test_an_argument_that_cannot_be_encoded_is_named(
    delayq: DelayQ,
    note: Any,
    redis: Redis,
    request: pytest.FixtureRequest,
    serializer: str,
    changes: dict[str, Any],
    name: str,
) -> None:
    if serializer == "auth":
        request.getfixturevalue("signing")
    send(note, serializer=serializer)
    before = snapshot(redis)

    with pytest.raises(ConfigError, match=f"{name}.*{serializer}.* cannot encode"):
        delayq.update("a", **changes, unpickle=True)
    assert snapshot(redis) == before


@pytest.mark.usefixtures("signing")
def test_signed_arguments_need_the_key(delayq: DelayQ, note: Any, redis: Redis) -> None:
    send(note, serializer="auth")
    registry.unregister("auth")
    before = snapshot(redis)

    with pytest.raises(RecordError, match="are signed, and this process has no key"):
        delayq.update("a", args=["new"])
    assert snapshot(redis) == before
    assert delayq.update("a", priority=9) is Outcome.DONE


@pytest.mark.usefixtures("signing")
def test_arguments_with_a_wrong_signature_are_not_decoded(
    delayq: DelayQ, note: Any, redis: Redis
) -> None:
    send(note, serializer="auth")
    data = redis.hget("{celery}:entries", "a") or b""
    body = json.loads(Record.unpack(data).message)["body"].encode()
    redis.hset("{celery}:entries", "a", data.replace(body, body[:-40] + b"A" * 40))

    with pytest.raises(RecordError, match="its arguments cannot be read"):
        delayq.update("a", args=["new"])


def test_nothing_is_unpickled_unless_asked(delayq: DelayQ, note: Any) -> None:
    send(note, serializer="pickle")

    with pytest.raises(RecordError, match="may run code of whoever wrote them: give unpickle=True"):
        delayq.update("a", args=["new"])
    assert delayq.update("a", args=["new"], unpickle=True) is Outcome.DONE


def test_unreadable_records_are_reported(delayq: DelayQ, note: Any, redis: Redis) -> None:
    send(note)
    redis.hset("{celery}:entries", "a", b"\xff no record")
    with pytest.raises(RecordError, match="unreadable record"):
        delayq.update("a", priority=9)

    redis.hset("{celery}:entries", "a", Record(0, "n", "note", b"{}").pack())
    with pytest.raises(RecordError, match="no properties"):
        delayq.update("a", priority=9)


def test_a_model_validates_the_new_arguments(delayq: DelayQ, app: Celery) -> None:
    pydantic = pytest.importorskip("pydantic")

    def checked(order: Any) -> None:
        """Stand for a task that validates its argument."""

    checked.__annotations__["order"] = pydantic.create_model("Order", number=int)
    app.task(name="checked", pydantic=True, shared=False)(checked)
    app.tasks["checked"].apply_async(({"number": 1},), eta=FAR, task_id="b")

    with pytest.raises(ConfigError, match=r"a Pydantic model refuses an argument.*number"):
        delayq.update("b", args=[{"number": "x"}])
    assert delayq.update("b", args=[{"number": 2}]) is Outcome.DONE
    found = delayq.get("b")
    assert found is not None
    assert found.args == [{"number": 2}]


def test_a_task_that_this_process_does_not_know_takes_any_arguments(
    delayq: DelayQ, app: Celery
) -> None:
    app.send_task("elsewhere", eta=FAR, task_id="a")

    assert delayq.update("a", args=[1, 2], kwargs={"x": 3}) is Outcome.DONE
    found = delayq.get("a")
    assert found is not None
    assert (found.args, found.kwargs) == ([1, 2], {"x": 3})


# -- outcomes


def test_what_has_left_the_schedule_is_reported_and_left_alone(
    delayq: DelayQ, note: Any, redis: Redis
) -> None:
    for id in ("ready", "running", "cancelled"):
        send(note, id)
    delayq.run_now("running")
    delayq.store.leases.acquire("celery", "me", 600, "1", 1)
    delayq.run_now("ready")
    delayq.cancel("cancelled")
    before = snapshot(redis)

    outcomes = [
        delayq.update(id, args=["new"]) for id in ("ready", "running", "cancelled", "never")
    ]
    assert outcomes == [Outcome.READY, Outcome.RUNNING, Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert snapshot(redis) == before


def test_only_what_is_due_then_is_changed(delayq: DelayQ, note: Any) -> None:
    send(note)

    assert delayq.update("a", args=["new"], if_eta="2100-01-31T09:00:00.001Z") is Outcome.CHANGED
    assert delayq.update("a", args=["new"], if_eta=FAR) is Outcome.DONE


def test_all_with_the_id_are_changed_or_those_of_one_queue(delayq: DelayQ, note: Any) -> None:
    send(note)
    send(note, queue="other")
    send(note)

    assert delayq.update("a", args=["new"], queue="other") is Outcome.DONE
    assert sorted((each.queue, each.args) for each in delayq.find("a")) == [
        ("celery", ["old"]),
        ("celery", ["old"]),
        ("other", ["new"]),
    ]
    assert delayq.update("a", args=["newer"]) is Outcome.DONE
    assert [each.args for each in delayq.find("a")] == [["newer"]] * 3


# -- unique keys and limits


def remind(order_id: int, text: str = "") -> None:
    """Stand for any task."""


@pytest.fixture
def unique(app: Celery) -> Any:
    app.task(name="remind", unique_key="order:{order_id}", shared=False)(remind)
    return app.tasks["remind"]


def owners(redis: Redis) -> dict[str, str]:
    found = redis.hgetall("{celery}:unique").items()
    return {
        key.decode(): owner.decode().partition("=")[2].partition("\0")[0] for key, owner in found
    }


def test_the_unique_key_follows_the_arguments(delayq: DelayQ, unique: Any, redis: Redis) -> None:
    unique.apply_async((1,), eta=FAR, task_id="a", unique_scope="done")

    assert delayq.update("a", kwargs={"text": "same key"}) is Outcome.DONE
    assert owners(redis) == {"remind:order%3A1": "a"}
    assert delayq.update("a", args=[2]) is Outcome.DONE
    assert owners(redis) == {"remind:order%3A2": "a"}
    found = delayq.get("a")
    assert found is not None
    assert found.unique_key == "remind:order%3A2"
    [message] = stored(redis)
    assert own_of(message["properties"])["label"].endswith(" dremind:order%3A2")

    unique.apply_async((1,), eta=FAR, task_id="b")
    unique.apply_async((2,), eta=FAR, task_id="c")  # replaces it
    assert owners(redis) == {"remind:order%3A1": "b", "remind:order%3A2": "c"}


def test_a_key_of_another_task_is_a_conflict(delayq: DelayQ, unique: Any, redis: Redis) -> None:
    unique.apply_async((1,), eta=FAR, task_id="a")
    unique.apply_async((2,), eta=FAR, task_id="b")
    before = snapshot(redis)

    assert delayq.update("a", args=[2]) is Outcome.CONFLICT
    assert snapshot(redis) == before
    delayq.cancel("b")
    assert delayq.update("a", args=[2]) is Outcome.DONE


def test_a_key_of_the_call_stays(delayq: DelayQ, unique: Any, redis: Redis) -> None:
    unique.apply_async((1,), eta=FAR, task_id="a", unique_key="own")

    assert delayq.update("a", args=[2]) is Outcome.DONE
    assert owners(redis) == {"remind:own": "a"}


def test_a_key_that_nobody_can_compute_is_reported(
    delayq: DelayQ, unique: Any, make_app: MakeApp, redis: Redis
) -> None:
    unique.apply_async((1,), eta=FAR, task_id="a")
    before = snapshot(redis)

    with pytest.raises(InvalidUnique, match="remind: it has a unique key, and this process does"):
        DelayQ.of(make_app()).update("a", args=[2])
    assert snapshot(redis) == before


def test_a_key_that_the_new_arguments_do_not_give_is_reported(
    delayq: DelayQ, app: Celery, redis: Redis
) -> None:
    app.task(name="own", unique_key="{text[0]}", shared=False)(remind)
    app.tasks["own"].apply_async((1, "text"), eta=FAR, task_id="a")
    before = snapshot(redis)

    with pytest.raises(
        InvalidUnique, match=r"own: unique_key=.* cannot be computed from args=\(1,"
    ):
        delayq.update("a", args=[1])
    assert snapshot(redis) == before


@pytest.mark.parametrize("by_pattern", [False, True])
def test_the_lane_follows_the_arguments_and_the_mark_the_expiry(
    delayq: DelayQ, app: Celery, redis: Redis, by_pattern: bool
) -> None:
    limit = Limit("api", rate="1/s", key="{order_id}")
    if by_pattern:
        AppLimits({"remind": limit}).share(app)
    app.task(name="remind", shared=False, **({} if by_pattern else {"limit": limit}))(remind)
    app.tasks["remind"].apply_async((1,), eta=FAR, task_id="a")

    def mark() -> Any:
        [data] = redis.hvals("{celery}:entries")
        return limit_of(Record.unpack(data).message)

    assert mark() == ("api:1", 0)
    assert delayq.update("a", args=[2]) is Outcome.DONE
    assert mark() == ("api:2", 0)
    assert delayq.update("a", expires=FAR) is Outcome.DONE
    assert mark() == ("api:2", due_of_eta(FAR).ms)
    found = delayq.get("a")
    assert found is not None
    assert (found.limit, found.limit_key) == ("api", "2")


def test_a_lane_that_nobody_can_compute_is_reported(
    delayq: DelayQ, app: Celery, make_app: MakeApp
) -> None:
    limit = Limit("api", rate="1/s", key="{order_id}")
    app.task(name="remind", shared=False, limit=limit)(remind)
    app.tasks["remind"].apply_async((1,), eta=FAR, task_id="a")

    with pytest.raises(InvalidLimit, match="a limit with a key, and this process does not know"):
        DelayQ.of(make_app()).update("a", args=[2])
    with pytest.raises(InvalidLimit, match="is an empty text"):
        delayq.update("a", args=[""])


# -- asyncio


def test_asyncio_does_the_same(delayq: DelayQ, note: Any) -> None:
    send(note)

    async def change() -> Outcome:
        async with AsyncDelayQ(delayq) as client:
            return await client.update("a", args=["new"], priority=9)

    assert asyncio.run(change()) is Outcome.DONE
    found = delayq.get("a")
    assert found is not None
    assert (found.args, found.priority) == (["new"], 9)
