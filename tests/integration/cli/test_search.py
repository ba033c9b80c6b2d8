"""``--arg`` on the command line."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.store.paging import SEARCH_ENTRIES
from celery_delayq.testing import wait_until
from celery_delayq.utils.portions import batches
from tests.support import TIMEOUT
from tests.support.cli import INTERRUPTIBLE, CommandLine, Ran
from tests.support.dead_letters import details, message, stored


def remind(order_id: int, note: str = "") -> None:
    """Stand for any task."""


@pytest.fixture
def cli(app: Celery) -> CommandLine:
    app.task(name="shop.remind", shared=False)(remind)
    return CommandLine(app)


@pytest.fixture
def filled(app: Celery, cli: CommandLine) -> None:
    """Nine tasks for the orders 0 to 2, in two queues, by keyword and by place; one has a text."""
    for n in range(9):
        queue = ("celery", "mail")[n % 2]
        app.send_task("shop.remind", (n % 3,), countdown=60 + n, task_id=f"id-{n}", queue=queue)
    app.send_task("shop.remind", kwargs={"order_id": "1"}, countdown=99, task_id="text")


def ids(ran: Ran) -> list[str]:
    return [each["id"] for each in ran.json["entries"]]


@pytest.mark.usefixtures("filled")
def test_entries_are_listed_and_counted(cli: CommandLine) -> None:
    for given, wanted in (
        (["order_id=1"], "id-1 id-4 id-7 text"),
        (['order_id="1"'], "text"),
        (["0=1"], "id-1 id-4 id-7"),
        (["order_id=1", "note=x"], ""),
        (["order_id=nine"], ""),
    ):
        options = [word for each in given for word in ("--arg", each)]
        for more in ([], ["--all"]):
            ran = cli("list", "--json", *more, *options)
            assert (ids(ran), ran.json["cursor"]) == (wanted.split(), None), given
        assert cli("count", "--json", *options).json == {"count": len(wanted.split())}
    shown = cli("list", "--arg", "order_id=1", "--queue", "mail").out
    assert re.findall(r"id-\d", shown) == ["id-1", "id-7"]
    assert shown.endswith("2 entries.\n")
    assert cli("list", "--arg", "order_id=9").out.startswith("0 entries: ")


@pytest.mark.usefixtures("filled")
def test_the_command_that_is_shown_goes_on(cli: CommandLine) -> None:
    first = cli("list", "--arg", "order_id=1", "--task", "shop.remind", "--limit", "2").out
    told = first.split("there may be more: ")[1].strip()
    second = cli(*shlex.split(told)).out

    assert re.findall(r"id-\d", first.partition("2 entries")[0]) == ["id-1", "id-4"]
    assert re.findall(r"id-\d", second) == ["id-7"]
    assert "text" in second


@pytest.mark.usefixtures("filled")
def test_changes_take_what_was_counted(cli: CommandLine, delayq: DelayQ) -> None:
    chosen = ["--arg", "order_id=2", "--yes"]

    assert "Cancel 3 entries" in cli("cancel", *chosen, "--dry-run").out
    assert "3 entries moved" in cli("reschedule", *chosen, "--by", "1h").out
    assert "3 entries cancelled" in cli("cancel", *chosen).out
    assert delayq.count() == 7
    assert "3 entries made ready" in cli("run-now", "--arg", "order_id=0", "--yes").out


@pytest.mark.usefixtures("filled")
def test_an_export_has_what_is_found(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"

    assert "4 entries exported" in cli("export", str(path), "--arg", "order_id=1").out

    assert '"arg": {"order_id": "1"}' in path.read_text().splitlines()[0]


@pytest.mark.parametrize("command", ["list", "count", "export -", "cancel"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--arg", "order_id"], "'order_id': expected NAME=VALUE, such as order_id=42"),
        (["--arg", "=42"], "expected NAME=VALUE"),
        (["--arg", "a=1", "--arg", "a=2"], "given twice"),
        (["--unpickle"], "unpickle=True without arg"),
    ],
)
def test_wrong_use_is_reported(cli: CommandLine, command: str, given: list[str], told: str) -> None:
    ran = cli(*command.split(), *given)

    assert (ran.code, told in " ".join(ran.err.split())) == (2, True), ran.err


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--arg ordr_id=1", "Note: no task of this app takes an argument ordr_id"),
        (
            "--arg ordr_id=1 --task shop.remind",
            "Note: task shop.remind does not take an argument ordr_id; did you mean order_id?",
        ),
        ("--arg order_id=1", ""),
        ("--arg 0=1", ""),
    ],
)
def test_an_unknown_argument_is_noted(cli: CommandLine, app: Celery, given: str, told: str) -> None:
    for name in {*app.tasks} - {"shop.remind"}:  # tasks that are shared by other tests, too
        app.tasks.pop(name)

    for command in ("list", "count", "cancel --dry-run"):
        ran = cli(*command.split(), *given.split())
        assert ran.code == 0
        assert ran.err.startswith(told)
        assert told or not ran.err


def test_what_cannot_be_told_is_counted(cli: CommandLine, app: Celery) -> None:
    app.conf.accept_content = ["json", "pickle"]
    app.send_task("shop.remind", (1,), countdown=60, serializer="pickle", task_id="packed")

    ran = cli("list", "--arg", "order_id=1", "--json")

    assert ids(ran) == []
    assert "The arguments of 1 entry are not known" in ran.err
    assert "as *args, which have no names" in ran.err
    assert ids(cli("list", "--arg", "order_id=1", "--unpickle", "--json")) == ["packed"]


@pytest.fixture
def left_out(
    app: Celery, cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of a task in a module that only workers import, and two others.

    The content of one is not decoded, and one is of a task of another app.
    """
    module = f"lazy_{uuid4().hex}"
    monkeypatch.setitem(sys.modules, f"{module}_shop", SimpleNamespace(app=app))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{module}.py").write_text(
        f"from {module}_shop import app\n"
        "@app.task(name='shop.lazy', shared=False)\n"
        "def lazy(order_id): pass\n"
    )
    app.conf.include = [module]
    app.send_task("shop.lazy", (1,), countdown=0.01, task_id="lazy")
    app.send_task("shop.remind", (1,), countdown=0.02, task_id="packed", serializer="pickle")
    app.send_task("other.task", (1,), countdown=0.03, task_id="other")


def hold(delayq: DelayQ) -> None:
    """Pause all tasks, and wait until all entries that are due in a moment are held."""
    for task in ("shop.lazy", "shop.remind", "other.task"):
        delayq.pause(task=task)
    store, end = delayq.store, delayq.session.now_ms() + 50

    def are_held() -> bool:
        is_past = delayq.session.now_ms() > end
        store.promote("celery", store.layout, 10)
        return is_past

    wait_until(are_held, TIMEOUT, "the entries are held")


@pytest.mark.usefixtures("left_out")
@pytest.mark.parametrize("command", ["list", "list --all", "list --held", "list --held --all"])
def test_a_list_knows_the_tasks_of_workers_and_counts_the_others(
    cli: CommandLine, delayq: DelayQ, command: str
) -> None:
    hold(delayq)

    ran = cli(*command.split(), "--arg", "order_id=1", "--json")

    assert ids(ran) == ["lazy"]
    assert "The arguments of 2 entries are not known" in ran.err


@pytest.mark.usefixtures("left_out")
def test_held_entries_are_searched_page_by_page(
    cli: CommandLine, app: Celery, delayq: DelayQ
) -> None:
    app.send_task("shop.remind", (1,), countdown=0.04, task_id="second")
    app.send_task("shop.remind", (1,), countdown=3600, task_id="not due")
    hold(delayq)

    first = cli("list", "--held", "--arg", "order_id=1", "--limit", "1").out
    told = first.split("there may be more: ")[1].strip()

    assert "lazy" in first.partition("1 entry")[0]
    assert ids(cli(*shlex.split(told), "--json", "--limit", "9")) == ["second"]


@pytest.mark.usefixtures("left_out")
def test_an_export_and_an_import_count_what_they_leave_out(
    cli: CommandLine, app: Celery, delayq: DelayQ, tmp_path: Path
) -> None:
    every, some = str(tmp_path / "all.jsonl"), str(tmp_path / "some.jsonl")
    arg = ["--arg", "order_id=1"]

    ran = cli("export", some, *arg, "--json")
    assert (ran.json["entries"], ran.json["unknown"]) == (1, 2)
    assert "The arguments of 2 entries are not known" in ran.err
    lazy = app.tasks.pop("shop.lazy")  # as in a process that has not imported it
    assert delayq.export_to(some, arg={"order_id": 1}).unknown == 3
    app.tasks.register(lazy)

    delayq.export_to(every)
    ran = cli("import", every, *arg, "--json")
    assert ran.json["outcomes"] == {"duplicate": 1, "unknown": 2, "filtered": 0}
    assert "The arguments of 2 entries are not known" in ran.err
    assert "2 not selected: their arguments are not known" in cli("import", every, *arg).out


@pytest.mark.usefixtures("left_out")
def test_a_change_counts_what_it_leaves_alone(cli: CommandLine, delayq: DelayQ) -> None:
    assert delayq.cancel_all(arg={"order_id": 1}, dry_run=True).unknown == 3
    arg = ["--arg", "order_id=1", "--yes", "--json"]

    dry, ran = cli("cancel", *arg, "--dry-run"), cli("cancel", *arg)

    for each in (dry, ran):
        assert (each.json["outcomes"], each.json["unknown"]) == ({"done": 1}, 2)
        assert "The arguments of 2 entries are not known" in each.err


# -- dead letters


@pytest.fixture
def dead(app: Celery, cli: CommandLine, delayq: DelayQ, filled: None) -> None:
    """The tasks of ``filled`` as dead letters, and one whose content is not decoded."""
    app.conf.accept_content = ["json", "pickle"]
    app.send_task("shop.remind", (1,), countdown=120, task_id="packed", serializer="pickle")
    for each in delayq.entries():
        sent = json.dumps(each.message).encode()
        delayq.store.dead_letters.add(each.queue, each.id, "failed", sent)
    delayq.cancel_all(everything=True)


def dead_ids(ran: Ran) -> set[str]:
    return {each["id"] for each in ran.json["dead_letters"]}


@pytest.mark.usefixtures("dead")
def test_dead_letters_are_listed(cli: CommandLine) -> None:
    for given, wanted in (
        (["order_id=1"], "id-1 id-4 id-7 text"),
        (['order_id="1"'], "text"),
        (["0=1"], "id-1 id-4 id-7"),
        (["order_id=1", "note=x"], ""),
    ):
        words = [word for each in given for word in ("--arg", each)]
        for more in ([], ["--all"]):
            ran = cli("dead", "list", "--json", *more, *words)
            assert (dead_ids(ran), ran.json["cursor"]) == ({*wanted.split()}, None), given
            assert "The arguments of 1 dead letter are not known" in ran.err
    ran = cli("dead", "list", "--arg", "order_id=1", "--unpickle", "--json")
    assert dead_ids(ran) == {"id-1", "id-4", "id-7", "text", "packed"}
    assert cli("dead", "list", "--arg", "order_id=9").out.startswith("0 dead letters: ")
    noted = cli("dead", "list", "--arg", "ordr_id=1", "--task", "shop.remind").err
    assert noted.startswith(
        "Note: task shop.remind does not take an argument ordr_id; did you mean"
    )


@pytest.mark.usefixtures("dead")
def test_the_command_that_is_shown_goes_on_with_dead_letters(cli: CommandLine) -> None:
    found: list[str] = []
    words = ["dead", "list", "--arg", "order_id=1", "--reason", "FAIL", "--died-to", "1s"]
    words[-1] = "2100-01-01"
    words += ["--limit", "2"]
    while words:
        shown = cli(*words).out
        listed, _, told = shown.partition(" dead letters, and there may be more: ")
        found += re.findall(r"id-\d|text", listed)
        words = shlex.split(told)

    assert sorted(found) == ["id-1", "id-4", "id-7", "text"]


@pytest.mark.usefixtures("dead")
def test_changes_of_dead_letters_take_what_was_counted(
    cli: CommandLine, delayq: DelayQ, tmp_path: Path
) -> None:
    def chosen(number: int) -> list[str]:
        return ["--arg", f"order_id={number}"]

    assert "Purge 3 dead letters" in cli("dead", "purge", *chosen(2), "--dry-run").out
    dry = cli("dead", "replay", *chosen(1), "--dry-run", "--json")
    assert (dry.json["outcomes"], dry.json["unknown"]) == ({"done": 4}, 1)
    assert "3 dead letters purged" in cli("dead", "purge", *chosen(2), "--yes").out
    ran = cli("dead", "export", str(tmp_path / "x.jsonl"), *chosen(1), "--json")
    assert (ran.json["dead_letters"], ran.json["unknown"]) == (4, 1)
    url = f"sqlite:///{tmp_path}/x.db"
    assert cli("dead", "archive", url, *chosen(0), "--json").json["moved"] == 3
    assert cli("dead", "import", url, *chosen(1), "--json").json["outcomes"] == {"filtered": 3}
    changes = ["--kwargs", '{"order_id": 5}', "--args", "[]"]
    ran = cli("dead", "replay", *chosen(1), *changes, "--unpickle", "--yes", "--to-queue", "slow")
    assert "5 dead letters replayed" in ran.out
    assert delayq.count_dead() == 0
    assert cli("dead", "replay", "id-1", *chosen(1)).code == 2


#: Entries of a search that is interrupted. Their lines are larger than a pipe, so a command whose
#: output nobody reads does not end.
MANY = 3_001


def with_order(number: int) -> bytes:
    """Return the stored bytes of a dead letter; odd ones are of order 1."""
    sent = message(f"id-{number:05}", "shop.remind")
    sent = sent.replace(b'"[[', b'"[[%d, ' % (number % 2))
    return stored(number + 1, "it failed", sent, details(traceback=""))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("list", []),
        pytest.param("list", ["--json"], marks=pytest.mark.nightly),
        pytest.param("dead list", [], marks=pytest.mark.nightly),
        pytest.param("dead list", ["--json"], marks=pytest.mark.full),
    ],
)
def test_an_interrupted_search_says_how_to_go_on(
    delayq: DelayQ, cli: CommandLine, shop: list[str], kind: str, given: list[str]
) -> None:
    if kind == "list":
        items = [{"args": (n % 2,), "countdown": 3600 + n, "id": f"id-{n:05}"} for n in range(MANY)]
        delayq.schedule_many(items, task="shop.remind")
    else:
        store = delayq.store.dead_letters
        for some in batches(range(MANY), 100):
            store.restore("celery", [(f"id-{n:05}", n + 1, with_order(n)) for n in some])
    noun = "entries" if kind == "list" else "dead letters"
    wanted = {f"id-{n:05}" for n in range(MANY) if n % 2}
    command = [*INTERRUPTIBLE, *shop, *kind.split(), "--arg", "0=1", "--all", *given]

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        log = ""
        while "id-00001" not in log:
            log += (line := process.stdout.readline())
            assert line, log
        process.send_signal(signal.SIGINT)
        log += process.stdout.read()
        code = process.wait(timeout=TIMEOUT)

    found = {*re.findall(r"id-\d{5}", log)}
    assert code == 1
    assert 0 < len(found) < len(wanted)
    assert "Traceback" not in log
    told = re.search(
        rf"Interrupted: ([\d,]+) found among [\d,]+ of 3,001 {noun}\. Go on with: (.*)", log
    )
    assert told is not None, log[-500:]
    rest = subprocess.run(
        [sys.executable, "-m", *shlex.split(told[2]), "--all"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert found | {*re.findall(r"id-\d{5}", rest)} == wanted
    assert len({*re.findall(r"id-\d{5}", rest)} & found) <= SEARCH_ENTRIES
