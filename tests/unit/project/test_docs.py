"""The documentation: links lead somewhere, named tests run, all settings are on their page.

Names of modules, scripts and files: ``test_references.py``.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click
import pytest

from celery_delayq.app import DelayQ
from celery_delayq.cli import delayq
from celery_delayq.model.changes.calls import WaitingCall
from celery_delayq.model.cluster_tags import cluster_tags, tag_of
from celery_delayq.store.keys import Keys, QueueKeys
from tests.run import ALL, TIERS
from tests.site.pages import parts
from tests.support import errors_page, helpers_page, keys_page, settings_page
from tests.support.cli import leaves
from tests.support.page_blocks import blocks_of

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
EXAMPLE = ROOT / "example_project" / "README.md"
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
#: How a block is run.
RUN = re.compile(r"^ *<!-- (?:not run|run by|continues): .*$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
#: A file of tests, and one of its tests. "…" stands for what was named before.
NAMED = re.compile(r"(?P<file>(?:…/|tests/[\w/]*/)?test_\w+\.py|…)(?:::(?P<name>\w+))?")

LINK = re.compile(r"\]\((?P<file>[^)#:\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
IDENTIFIER = re.compile(r"(?:\w+\.)*([A-Za-z_]\w*)(?:\(\))?")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
#: Most lines of pages that are to be read in one go.
LONGEST = {"README.md": 110, "docs/design.md": 250}
#: Parts of ``docs/index.md`` whose pages are about a feature of an app.
FEATURES = ("Scheduled tasks", "Failures", "In your app", "Data")


class Named(NamedTuple):
    """A test, or all of a file, that a page names."""

    page: str
    file: str
    name: str | None


def text_of(page: Path) -> str:
    """Return a page without its blocks of code, which are examples."""
    return RUN.sub("", BLOCK.sub("", page.read_text("utf-8")))


def named_in(page: Path) -> Iterator[Named]:
    """Read what a page names, with the short forms written out."""
    before = ""
    for code in CODE.finditer(text_of(page)):
        found = NAMED.fullmatch(code[1])
        if not found or found[0] == "…":
            continue
        file = found["file"]
        if file == "…":
            file = before
        elif not file.startswith("tests/"):
            file = f"{before.rpartition('/')[0]}/{file.removeprefix('…/')}"
        before = file
        yield Named(page.name, file, found["name"])


ALL_NAMED = [named for page in PAGES for named in named_in(page)]


def test_what_is_named_exists() -> None:
    assert len(ALL_NAMED) > 55
    missing = []
    for named in ALL_NAMED:
        path = ROOT / named.file
        tree = ast.parse(path.read_text("utf-8")) if path.is_file() else ast.Module([], [])
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if not path.is_file() or (named.name and named.name not in functions):
            missing.append(named)

    assert missing == []


def test_every_file_of_tests_that_a_page_mentions_is_understood() -> None:
    """No other spelling is there, of which nobody would notice that it is wrong."""
    for page in PAGES:
        mentioned = re.findall(r"\btest_\w+\.py|::test_\w+", text_of(page))
        understood = [
            text for named in named_in(page) for text in (Path(named.file).name, f"::{named.name}")
        ]
        assert set(mentioned) <= set(understood), page.name


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = HEADING.findall(text_of(page))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", [*PAGES, EXAMPLE], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for link in LINK.finditer(text_of(page)):
        target = (page.parent / link["file"]).resolve() if link["file"] else page
        if not target.exists() or (link["anchor"] and link["anchor"] not in anchors_of(target)):
            wrong.append(link[0])

    assert wrong == []


def test_a_queue_is_shown_with_its_own_hash_tag() -> None:
    """The tags are those of an app that leaves ``cluster_tags`` alone."""
    tags = cluster_tags(12)
    shown = [
        found
        for page in PAGES
        for found in re.findall(r"\{(dq\d+-\d+)\}:\{(\w+)\}:", page.read_text("utf-8"))
    ]

    assert shown
    assert [(tag, queue) for tag, queue in shown if tag_of(queue, tags) != tag] == []


@pytest.mark.parametrize("name", ["design.md", "keys.md", "internals.md"])
def test_every_identifier_that_a_page_about_the_code_names_is_in_the_code(name: str) -> None:
    package = ROOT / "celery_delayq"
    files = [*package.rglob("*.py"), *package.rglob("*.lua")]
    words = set(re.findall(r"\w+", "\n".join(file.read_text("utf-8") for file in files)))
    named = [IDENTIFIER.fullmatch(code) for code in CODE.findall(text_of(ROOT / "docs" / name))]

    assert [found[0] for found in named if found and found[1] not in words] == []


def test_the_page_of_keys_lists_every_key() -> None:
    keys, text = Keys(database=7), (ROOT / "docs/keys.md").read_text("utf-8")
    of_queues = {f"{{q}}:{field.name}" for field in fields(QueueKeys)} - {"{q}:own"}
    of_all = {
        value
        for name, value in vars(keys).items()
        if name not in ("prefix", "database", "tag", "periodic_wake")
    }

    listed = set(re.findall(r"`((?:\{q\}|delayq):\w+)(?::<[\w ]+>)?`", text))
    with_more = {f"{{q}}:{name}" for name in ("answer", "leased", "turning")}
    with_more |= {
        f"delayq:{name}" for name in ("answer", "budget", "worker_id", "interrupt", "periodic_wake")
    }
    assert listed == of_queues | {key.replace(":7", "") for key in of_all} | with_more


def test_the_design_lists_every_folder_of_scripts() -> None:
    lua = ROOT / "celery_delayq" / "store" / "lua"
    listed = re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs/design.md").read_text("utf-8"), re.M)

    assert {*listed} == {each.name for each in lua.iterdir() if each.is_dir()}


def test_every_page_about_a_feature_is_in_the_table_of_what_needs_what() -> None:
    text = (ROOT / "docs" / "what-needs-what.md").read_text("utf-8")
    linked = {Path(link["file"]).stem for link in LINK.finditer(text)}

    index = parts((ROOT / "docs" / "index.md").read_text("utf-8"))
    about_features = [each for each in index if each.title.removeprefix("How-to: ") in FEATURES]

    assert len(about_features) == len(FEATURES)
    assert {page.name for part in about_features for page in part.pages} <= linked


@pytest.mark.parametrize("name", LONGEST)
def test_a_page_for_newcomers_is_short(name: str) -> None:
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= LONGEST[name]


def test_the_overview_names_every_call_and_command() -> None:
    text = (ROOT / "docs/overview.md").read_text("utf-8")
    calls = {name for name, _ in inspect.getmembers(DelayQ, inspect.isfunction)}
    calls = {name for name in calls if name[0] != "_"} - {"init_app", "close"}
    # Commands of `periodic` are on a page of their own.
    commands = {name for name, _ in leaves() if not name.startswith("periodic ")} | {"periodic"}

    assert {name for name in calls if f"`{name}`" not in text} == set()
    assert {name for name in commands if f"`{name}" not in text} == set()


@pytest.mark.parametrize(
    "made", [settings_page, errors_page, keys_page], ids=lambda made: made.PAGE.stem
)
def test_a_table_that_is_made_from_the_code_is_as_the_code(made: ModuleType) -> None:
    """``python -m tests.support.settings_page``, for example, writes it."""
    text = made.PAGE.read_text("utf-8")

    assert text == made.with_table(text)
    known = {"settings": "`lease`", "errors": "`QueueFull`", "keys": "`{q}:due`"}
    assert known[made.PAGE.stem] in text


@pytest.mark.parametrize(
    "call",
    [
        WaitingCall(task="shop.pay", args=(9, 1)),
        WaitingCall(task="shop.pay", args=(9, 1, "USD")),
        WaitingCall(task="shop.pay", args=(9, 1), kwargs={"currency": "USD"}),
        WaitingCall(task="shop.pay", args=(9,), kwargs={"amount": 1}),
        WaitingCall(
            task="shop.pay", args=(), kwargs={"order_id": 9, "amount": 1, "currency": "USD"}
        ),
    ],
    ids=str,
)
def test_the_rewrites_of_the_page_of_deployments_fit_the_new_and_the_old_code(
    call: WaitingCall,
) -> None:
    blocks = [each.code for each in blocks_of(ROOT / "docs/deploys.md") if "drop_" in each.code]
    functions: dict[str, Any] = {}
    exec(next(code for code in blocks if "def drop_currency" in code), functions)

    def old(order_id: int, amount: int) -> dict[str, Any]:
        return locals()

    def new(order_id: int, amount: int, currency: str) -> dict[str, Any]:
        return locals()

    added = replace(call, **(functions["add_currency"](call) or {}))
    dropped = replace(added, **(functions["drop_currency"](added) or {}))

    assert new(*added.args, **added.kwargs)["currency"] in ("EUR", "USD")
    assert old(*dropped.args, **dropped.kwargs) == {"order_id": 9, "amount": 1}


def test_the_help_of_the_command_line_has_the_parts_of_the_overview() -> None:
    table = (ROOT / "docs/overview.md").read_text("utf-8").partition("| to | commands |")[2]
    rows = re.findall(r"^\| ([^|]+) \| (`.+) \|$", table.partition("\n\n")[0], re.M)
    told = delayq.get_help(click.Context(delayq, info_name="delayq", terminal_width=80))
    parts = re.findall(r"^To ([\w ]+):\n((?:  .+\n?)+)", told, re.M)

    assert [
        (purpose, [*dict.fromkeys(re.findall(r"`([a-z][\w-]*)", names))]) for purpose, names in rows
    ] == [(purpose, re.findall(r"^  (\S+)", lines, re.M)) for purpose, lines in parts]


def test_the_page_of_settings_lists_every_argument_of_the_app() -> None:
    text = (ROOT / "docs/settings.md").read_text("utf-8")
    listed = re.findall(
        r"^\| `(\w+)=", text.partition("\n## The app\n")[2].partition("\n## ")[0], re.M
    )

    assert [*inspect.signature(DelayQ).parameters] == ["app", *listed]


@pytest.mark.full
def test_what_is_named_runs_in_one_of_the_tiers() -> None:
    files = sorted({named.file for named in ALL_NAMED})
    marks = " or ".join(f"({TIERS[tier][0]})" for tier in ("short", "full", "nightly"))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", marks, *files], cwd=ROOT, capture_output=True, text=True, check=True
    )
    collected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    in_files = {line.partition("::")[0] for line in collected}

    missing = [
        named
        for named in ALL_NAMED
        if named.file not in in_files
        or (named.name and f"{named.file}::{named.name}" not in collected)
    ]
    assert missing == []


def test_the_page_for_contributors_lists_every_test_helper() -> None:
    """``python -m tests.support.helpers_page`` writes the table."""
    text = helpers_page.PAGE.read_text("utf-8")

    assert text == helpers_page.with_table(text)
    assert [name for name, purpose in helpers_page.purposes().items() if not purpose] == []


def test_a_helper_of_one_test_file_is_in_that_file() -> None:
    """Programs and plugins of pytest are run by their names."""
    users: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for module in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                    users[module].add(path.relative_to(ROOT).as_posix())

    found = {}
    for path in helpers_page.HERE.rglob("*.py"):
        text = path.read_text("utf-8")
        used = users[".".join(path.relative_to(ROOT).with_suffix("").parts)]
        is_run = "__main__" in text or text.startswith('"""A pytest plugin')
        if len(used) == 1 and "/test_" in min(used) and not is_run:
            found[path.name] = used
    assert found == {}


def test_no_test_gives_its_tasks_to_the_apps_of_other_tests() -> None:
    """A shared task, which is Celery's default, is one of every app that the process makes later.

    Modules of `tests/apps` and of benchmarks have a process of their own.
    """
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        if path.relative_to(ROOT).parts[1] in ("apps", "benchmarks"):
            continue
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("app.task"):
                    options = {each.arg for each in call.keywords}
                    if options.isdisjoint({"shared", None}):
                        found.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert found == []


def test_every_folder_with_tests_is_run() -> None:
    folders = {
        path.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/**/test_*.py")
    }

    assert folders == set(ALL)
