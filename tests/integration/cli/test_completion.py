"""What a shell suggests, asked as bash asks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from celery import Celery

CELERY = Path(sys.executable).with_name("celery")


@pytest.fixture
def project(tmp_path: Path, delayq_broker_url: str) -> Path:
    """A folder with an app that prints when it is imported."""
    (tmp_path / "shop.py").write_text(
        "import sys\nfrom celery import Celery\nfrom kombu import Queue\n"
        "from celery_delayq import DelayQ\n"
        "print('plain,noise'); print('plain,noise', file=sys.stderr)\n"
        f"app = Celery('shop', broker={delayq_broker_url!r})\n"
        "app.conf.task_queues = [Queue('mail'), Queue('bills')]\n"
        "app.conf.include = ['more']\n"
        "DelayQ(app)\n"
        "@app.task(name='shop.mail')\ndef mail(): pass\n"
    )
    (tmp_path / "more.py").write_text(
        "from shop import app\n@app.task(name='shop.bill')\ndef bill(): pass\n"
    )
    return tmp_path


def suggested(project: Path, line: str) -> list[str]:
    """Return what is suggested for the last word of a line, which may be empty."""
    words = line.split(" ")
    done = subprocess.run(
        [CELERY],
        cwd=project,
        env={
            **os.environ,
            "_CELERY_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return [item.removeprefix("plain,") for item in done.stdout.split("\n") if item]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "cancel count dead get list pause reschedule run-now"),
        ("resc", "reschedule"),
        ("reschedule --", "--eta --in --by --if-eta --yes"),
        ("list --due-f", "--due-from"),
        ("dead ", "list show replay purge archive"),
        ("dead replay --to-queue m", "mail"),
        ("dead list --task shop.b", "shop.bill"),
        ("cancel --task shop.m", "shop.mail"),
        ("count --task celery.", "celery.chord"),
    ],
)
def test_commands_options_and_their_values_are_suggested(
    project: Path, line: str, expected: str
) -> None:
    found = suggested(project, f"celery -A shop delayq {line}")

    assert {*expected.split()} <= {*found}
    assert all(each.startswith(line.split(" ")[-1]) for each in found)


def test_tasks_of_the_app_are_suggested(project: Path) -> None:
    assert suggested(project, "celery -A shop delayq list --task ") == ["shop.bill", "shop.mail"]


@pytest.mark.nightly
def test_queues_of_the_app_and_of_redis_are_suggested(project: Path, app: Celery) -> None:
    for queue in ("new", "line\nbreak"):
        app.send_task("t", countdown=60, queue=queue)

    assert suggested(project, "celery -A shop delayq pause --queue ") == ["bills", "mail", "new"]
    assert suggested(project, "celery -A shop delayq list --queue b") == ["bills"]


#: A host that never answers is given up by the kernel after two minutes.
HANGING_SECONDS = 60


@pytest.mark.nightly
def test_what_goes_wrong_means_fewer_suggestions(project: Path) -> None:
    (project / "fixed.py").write_text(
        "from shop import app\napp.conf.broker_url = 'delayq+redis://10.255.255.1:6379'\n"
    )
    begun = time.monotonic()
    assert {*suggested(project, "celery -A shop delayq list --queue ")} >= {"bills", "mail"}
    usual = time.monotonic() - begun

    begun = time.monotonic()
    assert suggested(project, "celery -A fixed delayq list --queue ") == ["bills", "mail"]
    assert time.monotonic() - begun < 3 * usual + HANGING_SECONDS, "the shell hangs"
    silent = "celery -b delayq+redis://10.255.255.1:6379 -A shop delayq list --queue "
    begun = time.monotonic()
    assert {*suggested(project, silent)} >= {"bills", "mail"}
    assert time.monotonic() - begun < 3 * usual + HANGING_SECONDS, "the shell hangs"
    assert suggested(project, "celery -A absent delayq list --queue ") == []
    assert suggested(project, "celery -A absent delayq list --task ") == []
    assert suggested(project, "celery delayq list --task ") == []


def test_bash_completes(project: Path) -> None:
    """Given the script that click makes, bash itself fills in the word."""
    line = "celery -A shop delayq cancel --task shop.b"
    script = f"""
        eval "$(_CELERY_COMPLETE=bash_source {shlex.quote(str(CELERY))})"
        complete -p celery >/dev/null || exit 3
        COMP_WORDS=({line}); COMP_CWORD=6
        _celery_completion {shlex.quote(str(CELERY))}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """

    done = subprocess.run(
        ["bash", "-c", script], cwd=project, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["shop.bill"]
