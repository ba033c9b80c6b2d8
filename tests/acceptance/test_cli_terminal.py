"""The command line in a real terminal, small and large, as a user works with it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import pytest
from celery import Celery
from rich.cells import cell_len

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import dead_letters
from tests.support.skips import left_out

#: The shell's prompt: number of commands that it has run, and exit code of the last one.
PROMPT = re.compile(r"^<(\d+):(\d+)>\$", re.MULTILINE)


def require_tmux() -> None:
    """Skip a test without tmux; with CI=true the test fails."""
    if shutil.which("tmux") is None:
        raise left_out("there is no tmux")


class Terminal:
    """bash in a terminal; a context manager that ends bash and its programs."""

    def __init__(self, columns: int, rows: int, cwd: Path, env: Mapping[str, str]) -> None:
        self.columns, self.rows = columns, rows
        self.cwd = cwd
        self._number = 1
        self._env = {"PS1": r"<\#:$?>$ ", "HISTFILE": "", "LC_ALL": "C.UTF-8", **env}
        # A tmux server of its own, without other sessions.
        self._name = f"delayq-{os.getpid()}-{uuid4().hex[:8]}"
        #: Output of the shell and its programs. The test reads the screen only if the output has
        #: grown.
        self._output = cwd / f"{self._name}.out"
        self._shown, self._size = "", -1

    def __enter__(self) -> Terminal:
        shell = ["env", *(f"{n}={v}" for n, v in self._env.items()), "bash", "--norc", "-i"]
        size = ["-x", str(self.columns), "-y", str(self.rows), "-c", str(self.cwd)]
        history = ["set-option", "-g", "history-limit", "20000", ";"]
        self._tmux(
            "-f", "/dev/null", "start-server", ";", *history, "new-session", "-d", *size, *shell
        )
        self._tmux("pipe-pane", f"exec cat >{shlex.quote(str(self._output))}")
        self._wait_prompt(1)
        return self

    def __exit__(self, *_: object) -> None:
        socket = self._tmux("display-message", "-p", "#{socket_path}", check=False).strip()
        self._tmux("kill-server", check=False)
        if socket:
            Path(socket).unlink(missing_ok=True)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; return its exit code and its output.

        Lines that the terminal wrapped are joined, as when they are copied.
        """
        number = self.begin(command)
        return self.end(number)

    def begin(self, command: str) -> int:
        """Type a command; return its number."""
        self._number = max(int(number) for number, _ in PROMPT.findall(self.text()))
        self.type(command)
        return self._number

    def end(self, number: int) -> tuple[int, str]:
        """Wait until a command has ended; return its exit code and its output."""
        code = self._wait_prompt(number + 1)
        return code, _written(self.text(), number).rpartition(f"<{number + 1}:")[0]

    def type(self, text: str, key: str = "Enter") -> None:
        """Type a text and then a key."""
        self._tmux("send-keys", "-l", "--", text)
        self.press(key)

    def press(self, key: str) -> None:
        """Press a key by tmux' name, such as ``C-c``."""
        self._tmux("send-keys", key)

    def wait(self, pattern: str) -> str:
        """Wait until the last command has written *pattern*; return its output."""
        found = wait_until(
            lambda: re.search(pattern, _written(self._latest(), self._number)),
            what=lambda: f"{pattern!r} on the screen:\n{self.text()}",
        )
        return found[0] if found else ""

    def wait_screen(self, pattern: str) -> None:
        """Wait until *pattern* is on the screen, for example in a line that is not entered yet."""
        wait_until(
            lambda: re.search(pattern, self._latest().rstrip("\n"), re.MULTILINE),
            what=lambda: f"{pattern!r} on the screen:\n{self.text()}",
        )

    def text(self) -> str:
        """Return the text on the screen and above it; wrapped lines are joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    @property
    def title(self) -> str:
        """The title of the terminal, which programs may set."""
        return self._tmux("display-message", "-p", "#{pane_title}")

    def _latest(self) -> str:
        """Return :meth:`text`. A process reads it only if there is more output."""
        size = self._output.stat().st_size if self._output.exists() else 0
        if size != self._size:
            # The size is from before: the next look finds output that is written meanwhile.
            self._shown, self._size = self.text(), size
        return self._shown

    def _wait_prompt(self, number: int) -> int:
        def code() -> str | None:
            found = dict(PROMPT.findall(self._latest()))
            return found.get(str(number))

        return int(
            wait_until(code, what=lambda: f"prompt {number} on the screen:\n{self.text()}") or "-1"
        )

    def _tmux(self, *args: str, check: bool = True) -> str:
        env = {name: value for name, value in os.environ.items() if name not in ("TMUX", "COLUMNS")}
        return subprocess.run(
            ["tmux", "-L", self._name, *args],
            env=env,
            capture_output=True,
            text=True,
            check=check,
        ).stdout


def _written(text: str, number: int) -> str:
    """Return the text behind the line in which the shell has echoed a command."""
    return text.split(f"<{number}:")[-1].partition("\n")[2]


pytestmark = pytest.mark.full

FAR = datetime(2100, 1, 31, 9, tzinfo=timezone.utc)
DELAYQ = "celery -A shop delayq"


SIZES = [
    pytest.param((80, 24), id="80x24"),
    pytest.param((200, 50), id="200x50", marks=pytest.mark.nightly),
]


@pytest.fixture(params=SIZES)
def terminal(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    delayq_broker_url: str,
    delayq_redis: RedisUnderTest,
) -> Iterator[Terminal]:
    require_tmux()
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\nfrom celery_delayq import DelayQ\n"
        f"app = Celery('shop', broker={delayq_broker_url!r}, backend={delayq_redis.url!r})\n"
        "DelayQ(app)\n"
    )
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    columns, rows = request.param
    with Terminal(columns, rows, tmp_path, {"PATH": path, "TZ": "JST-9"}) as terminal:
        yield terminal


def fits(terminal: Terminal, text: str) -> bool:
    """Return whether the terminal has wrapped no line, and no text is left out."""
    return "…" not in text and max(map(cell_len, text.splitlines())) <= terminal.columns


def shown_by(terminal: Terminal, command: str) -> str:
    """Run a command that succeeds; return its output, which fits."""
    code, shown = terminal.run(f"{DELAYQ} {command}")
    assert code == 0
    assert fits(terminal, shown)
    return shown


def answered(
    terminal: Terminal, command: str, answer: str, question: str = "[y/N]:"
) -> tuple[int, str]:
    """Run a command that asks, answer it, and return its exit code and its output."""
    number = terminal.begin(f"{DELAYQ} {command}")
    terminal.wait(re.escape(question))
    terminal.type(answer)
    return terminal.end(number)


def fill(app: Celery, task: str, number: int, **options: object) -> list[str]:
    with app.producer_pool.acquire() as producer:
        return [
            app.send_task(
                task, (n,), eta=FAR + timedelta(minutes=n), producer=producer, **options
            ).id
            for n in range(number)
        ]


def test_a_list_fits_and_ids_can_be_copied(terminal: Terminal, app: Celery) -> None:
    ids = fill(app, "shop.invoices.monthly.send_statement", 30, queue="invoices.europe", priority=9)
    ids += fill(app, "shop.reminders.send_reminder_by_mail", 3)

    shown = shown_by(terminal, "list")

    # Each id is in one line and complete, so that a double click selects it.
    assert sorted(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", shown)) == sorted(ids)
    assert "2100-01-31T18:00:00+09:00" in shown  # in local time, nine hours ahead
    assert shown.rstrip().endswith("33 entries.")
    _, one = terminal.run(f"{DELAYQ} get {ids[3]}")
    assert fits(terminal, one)
    assert "2100-01-31T18:03:00+09:00, in " in one


def test_many_are_cancelled_after_a_look_and_a_question(terminal: Terminal, app: Celery) -> None:
    fill(app, "shop.mail", 150)
    fill(app, "shop.bill", 1_054)
    delayq = DelayQ.of(app)

    shown = shown_by(terminal, "cancel --queue celery --dry-run")
    assert re.search(r"^shop\.bill +celery +1,054$", shown, re.MULTILINE)
    question = "Cancel 1,204 entries of 2 tasks in queue celery"
    assert f"{question}: a dry run, nothing was changed." in " ".join(shown.split())

    for answer, expected in (("n", "Nothing was changed."), ("", "Nothing was changed.")):
        code, shown = answered(terminal, "cancel --queue celery", answer, f"{question}? [y/N]:")
        assert (code, shown.splitlines()[-1]) == (1, expected)
        assert delayq.count() == 1204

    question = "Cancel 1,054 entries of shop.bill in queue celery? [y/N]:"
    code, shown = answered(terminal, "cancel --task shop.bill", "y", question)
    assert (code, shown.splitlines()[-1]) == (0, "1,054 entries cancelled.")
    assert fits(terminal, shown)
    assert delayq.count() == 150


def test_a_rewrite_asks_after_a_dry_run(terminal: Terminal, app: Celery, tmp_path: Path) -> None:
    fill(app, "shop.mail", 3)
    delayq = DelayQ.of(app)
    (tmp_path / "fixes.py").write_text(
        "def fail_once(call):\n"
        "    if call.args == (1,): raise ValueError('as told')\n"
        "    return None if call.kwargs else {'kwargs': {'more': 1}}\n"
    )

    question = "3 messages are to be renamed. Do it? [y/N]:"
    code, shown = answered(terminal, "rename shop.mail post.mail --force", "n", question)
    assert (code, shown.splitlines()[-1]) == (1, "Nothing was changed.")
    assert delayq.count(task="shop.mail") == 3
    code, shown = answered(terminal, "rename shop.mail post.mail --force", "y", question)
    assert (code, shown.splitlines()[-1]) == (0, "3 messages looked at, 3 renamed.")
    assert delayq.count(task="post.mail") == 3
    delayq.pause(task="shop.mail")
    question = "Task post.mail is to be paused. Do it? [y/N]:"
    answered(terminal, "rename shop.mail post.mail --force", "y", question)
    assert {*delayq.paused().tasks} == {"shop.mail", "post.mail"}
    # Nothing is left to ask about.
    assert terminal.run(f"{DELAYQ} rename shop.mail post.mail --force")[0] == 0

    # A cursor of the dry run would leave out what nobody has changed.
    code, shown = terminal.run(f"{DELAYQ} rewrite fixes:fail_once --stop")
    assert (code, "To continue" in shown) == (1, False)
    assert shown.splitlines()[-1] == "It stopped at the first error: nothing was changed."
    question = "2 messages are to be rewritten. Do it? [y/N]:"
    code, shown = answered(terminal, "rewrite fixes:fail_once", "y", question)
    assert code == 1
    assert shown.splitlines()[-1] == "1 failed, and stay as they are."
    assert sorted(str(each.kwargs) for each in delayq.entries()) == [
        "{'more': 1}",
        "{'more': 1}",
        "{}",
    ]


@pytest.mark.parametrize("kind", ["entries", "dead letters"])
def test_a_bar_shows_how_far_it_is_and_after_ctrl_c_it_may_be_repeated(
    terminal: Terminal, app: Celery, tmp_path: Path, kind: str
) -> None:
    # Cancelling one task takes a round trip to the result backend.
    delayq, total = DelayQ.of(app), 5_000 if kind == "entries" else 10_000
    count: Callable[[], int]
    if kind == "entries":
        delayq.schedule_many((Item(eta=FAR) for _ in range(total)), task="shop.mail")
        count, command, step = delayq.count, "cancel --task shop.mail --yes", "cancel"
    else:
        dead_letters.fill(delayq, total)
        count, command, step = delayq.count_dead, "dead archive sqlite:///dead.db", ""

    number = terminal.begin(f"{DELAYQ} {command}")
    terminal.wait(rf"{step}[^\n]*?[1-9]\d*/{total}")
    terminal.press("C-c")
    code, shown = terminal.end(number)

    assert code == 1
    assert "Traceback" not in shown
    assert 0 < count() < total
    if kind == "entries":
        assert "entries were cancelled before." in " ".join(shown.split())
    assert terminal.run(f"{DELAYQ} {command}")[0] == 0
    assert count() == 0
    if kind == "dead letters":  # none is lost
        assert delayq.import_dead(f"sqlite:///{tmp_path}/dead.db").outcomes == {"restored": total}


def test_ctrl_c_at_the_question_changes_nothing(terminal: Terminal, app: Celery) -> None:
    fill(app, "shop.mail", 2)

    number = terminal.begin(f"{DELAYQ} run-now --task shop.mail")
    terminal.wait(r"\[y/N\]:")
    terminal.press("C-c")
    code, shown = terminal.end(number)

    assert code == 1
    assert "Traceback" not in shown
    assert DelayQ.of(app).count() == 2


def test_dead_letters_are_looked_at_and_replayed(terminal: Terminal, app: Celery) -> None:
    """A user finds failed tasks, reads the reasons, and replays them."""
    delayq = DelayQ.of(app)
    ids = dead_letters.fill(
        delayq, 12, queue="invoices.europe", task="shop.invoices.send_statement"
    )
    add_dead_letter = delayq.store.dead_letters.add
    uuid = "0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5"
    reason = f"failed after 10 retries: HTTPError: {'the payment service said no, ' * 5}"
    sent = dead_letters.message(uuid, "shop.mail", size=300)
    add_dead_letter("celery", uuid, reason, sent, dead_letters.details("HTTPError"))

    shown = shown_by(terminal, "dead list")
    assert uuid in shown  # in one line and complete
    assert "HTTPError: the payment" in " ".join(shown.split())
    assert shown.rstrip().endswith("13 dead letters.")
    code, one = terminal.run(f"{DELAYQ} dead show {uuid}")
    assert code == 0
    # The terminal wraps long values, so that they can be copied.
    assert f"reason     {reason.rstrip()}\n" in one
    assert "Traceback (most recent call last):" in one
    assert re.search(r"^died +\d{4}-\d\d-\d\dT\S+\+09:00, ", one, re.MULTILINE)

    code, shown = terminal.run(f"{DELAYQ} dead replay --everything --dry-run")
    assert code == 0
    # Sentences may be wrapped, tables may not.
    rows = [line for line in shown.splitlines() if not line.startswith("This app")]
    assert fits(terminal, "\n".join([*rows, ""]))
    assert "does not know the task shop.mail" in " ".join(shown.split())
    assert re.search(r"^shop\.mail +celery +1$", shown, re.MULTILINE)
    code, shown = answered(terminal, "dead replay --queue invoices.europe --rate 0.5", "n")
    question = (
        "Replay 12 dead letters of shop.invoices.send_statement in queue invoices.europe at 0.5 a"
    )
    assert question in " ".join(shown.split())
    assert (code, shown.splitlines()[-1]) == (1, "Nothing was changed.")
    assert delayq.count_dead() == 13

    code, shown = answered(terminal, "dead replay --queue invoices.europe --rate 0.5", "y")
    assert (code, shown.splitlines()[-1]) == (0, "12 dead letters replayed at 0.5 a second.")
    assert {entry.id for entry in delayq.entries()} == {*ids[1:]}


def test_periodic_entries_fit_and_long_ids_are_whole(terminal: Terminal, app: Celery) -> None:
    name = "invoices.europe.monthly.send-statements"  # a tick's id is longer than Celery's
    delayq = DelayQ.of(app)
    delayq.periodic.add(name, timedelta(days=1), "shop.invoices.monthly.send_statement", start=FAR)
    id = f"{name}:4105155600000"
    app.send_task("shop.invoices.monthly.send_statement", eta=FAR, task_id=id)

    code, shown = terminal.run(f"{DELAYQ} periodic show {name}")
    assert code == 0
    assert re.search(r"^manual runs +0$", shown, re.MULTILINE)
    assert re.search(r"^start +2100-01-31T18:00:00\+09:00, in ", shown, re.MULTILINE)
    for command, whole in (("periodic list", name), ("list", id)):
        shown = shown_by(terminal, f"{command}")
        assert whole in shown
    assert "2100-02-01T18:00:00+09:00" in terminal.run(f"{DELAYQ} periodic list")[1]
