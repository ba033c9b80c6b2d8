"""Groups of changes for speed are switched off by the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from celery_delayq.errors import ConfigError
from celery_delayq.integration import fast

NAMES = [group.name for group in fast.GROUPS]


@pytest.mark.parametrize(
    ("value", "off"), [("", []), ("1", []), ("0", NAMES), (f"-{NAMES[0]},-{NAMES[2]}", NAMES[:3:2])]
)
def test_the_variable_switches_all_groups_off_or_some(value: str, off: list[str]) -> None:
    assert [group.name for group in fast.groups_of(value)] == [n for n in NAMES if n not in off]


@pytest.mark.parametrize("value", ["no", "2", "-other", NAMES[0], f"{NAMES[0]},-{NAMES[1]}"])
def test_another_value_is_an_error_that_says_what_there_is(value: str) -> None:
    with pytest.raises(ConfigError, match=f"expected 0 .* there are .*{NAMES[1]}"):
        fast.groups_of(value)


def test_without_them_celery_sends_as_it_does() -> None:
    code = (
        "from celery import Celery; from celery.app.amqp import AMQP\n"
        "from celery_delayq import DelayQ\n"
        "from celery_delayq.integration import fast, install\n"
        "DelayQ(Celery(set_as_current=False))\n"
        "assert not (fast.PROCESS or fast.WORKER)\n"
        "assert not hasattr(AMQP.as_task_v2, '__wrapped__')"
    )

    subprocess.run([sys.executable, "-c", code], check=True, env={fast.VARIABLE: "0"})


def test_each_group_has_its_tests() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("test_*.py")}

    assert {f"test_{name}" for name in NAMES} == files - {Path(__file__).stem}


def test_each_group_is_a_module_that_says_which_row_shows_its_gain() -> None:
    for group in fast.GROUPS:
        module = sys.modules[f"{fast.__name__}.{group.name}"]
        assert f"``{group.row}``" in " ".join(str(module.__doc__).split()), group.name
        assert bool(group.process) != bool(group.worker), group.name
