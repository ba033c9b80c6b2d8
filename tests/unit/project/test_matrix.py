"""Which versions are tried together, of which nobody may run all combinations."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple
from importlib.metadata import packages_distributions, requires
from itertools import combinations, product

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import matrix
from tests.matrix import (
    CELERY,
    COMBINATIONS,
    DATEUTIL_4,
    EVERY_CHANGE,
    IGNORED,
    PRE_RELEASE,
    PRE_RELEASES,
    ROOT,
    SERVERS,
    WITH_RABBITMQ,
    WITHOUT_FAST,
    only_releases,
    runs_lua,
    runs_of,
)

KNOWN = (
    ("3.10", "3.11", "3.12", "3.13", "3.14"),
    tuple(CELERY),
    ("oldest", "newest"),
    tuple(SERVERS),
)
#: `make test` and `make test-full` run on Valkey 9.
NIGHTLY = {"3.14", "valkey9"}

COLLECT = """
import sys, pytest

class Missing:
    def find_spec(name, *_):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"make matrix does not install {name}")

sys.meta_path.insert(0, Missing)
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_every_version_of_python_celery_and_redis_py_is_in_two_combinations_at_least() -> None:
    found = Counter(version for one in COMBINATIONS for version in astuple(one))

    assert set(found) == {version for versions in KNOWN for version in versions}
    assert min(found[version] for version in {*found} - {*SERVERS} - NIGHTLY) >= 2


def test_for_every_change_the_oldest_versions_are_tried() -> None:
    pythons, celeries, clients, _ = KNOWN

    assert astuple(EVERY_CHANGE)[:3] == (pythons[0], celeries[0], clients[0])


def test_nine_runs_try_most_pairs_of_versions() -> None:
    """Nine have room for 54 pairs, of 81 that there are."""
    possible = {pair for one, other in combinations(KNOWN, 2) for pair in product(one, other)}
    tried = {pair for one in COMBINATIONS for pair in combinations(astuple(one), 2)}

    assert len(COMBINATIONS) == len(set(COMBINATIONS)) <= 9
    assert tried <= possible
    assert (len(tried), len(possible)) == (50, 81)


def test_both_versions_of_dateutil_are_installed_on_some_python() -> None:
    """Celery 5.7 itself pins 2.9."""
    pins = {pin for one in COMBINATIONS for pin in one.pins if "dateutil" in pin}
    on_python = {one.python for one in COMBINATIONS if DATEUTIL_4 in one.pins}

    assert pins == {"python-dateutil==2.9.*", DATEUTIL_4}
    assert on_python - {"3.10"}


def test_pre_releases_are_tried_beside_the_others_and_may_fail() -> None:
    assert PRE_RELEASE not in COMBINATIONS
    assert all(Requirement(pin).specifier.prereleases for pin in PRE_RELEASES)
    assert not runs_lua(PRE_RELEASE)


@pytest.mark.parametrize(
    ("celery", "said"),
    [("5.8.0rc1", ""), ("5.8.0", "no pre-releases: the newest are celery 5.8.0 and kombu 5.7.0")],
)
def test_without_a_pre_release_nothing_is_tried(celery: str, said: str) -> None:
    assert only_releases({"kombu": Version("5.7.0"), "celery": Version(celery)}) == said


def test_scripts_run_once_on_every_server_and_with_both_clients() -> None:
    chosen = [one for one in COMBINATIONS if runs_lua(one)]

    assert sorted(one.server for one in chosen) == sorted(SERVERS)
    assert {one.redis_py for one in chosen} == {"oldest", "newest"}


def test_changes_for_speed_are_left_out_of_one_of_two_runs_of_the_newest_celery() -> None:
    newest = [one for one in COMBINATIONS if one.celery == max(CELERY)]

    assert WITHOUT_FAST in newest
    assert len(newest) > 1


def test_a_python_that_is_missing_is_named_in_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"3.10": "/usr/bin/python3.10", "3.12": "/usr/bin/python3.12"}
    monkeypatch.setattr(matrix, "interpreter", there.get)
    monkeypatch.setattr(matrix.Matrix, "run", lambda _, one: matrix.Result(one.name, "passed", 1))

    assert matrix.main([]) == 0

    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "NOT RUN: Python 3.13, which this machine does not have"


def requirements_of(group: str) -> Iterator[str]:
    """Yield the requirements of a dependency group."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    for each in groups[group]:
        if isinstance(each, str):
            yield each
        else:
            yield from requirements_of(each["include-group"])


def installed_by(*texts: str) -> Iterator[str]:
    """Yield the names of what pip installs for requirements."""
    todo, done = [Requirement(text) for text in texts], set[tuple[str, str]]()
    while todo:
        wanted = todo.pop()
        yield canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras} - {extra for name, extra in done if name == wanted.name}:
            done.add((wanted.name, extra))
            needed = map(Requirement, requires(wanted.name) or [])
            todo += [e for e in needed if not e.marker or e.marker.evaluate({"extra": extra})]


@pytest.mark.full
def test_what_is_collected_imports_only_what_is_installed() -> None:
    """Tests that are not chosen are imported all the same."""
    installed = {*installed_by(*requirements_of("matrix")), "pip"}
    missing = {
        package
        for package, names in packages_distributions().items()
        if installed.isdisjoint(map(canonicalize_name, names))
    }
    assert {"pyspark", "django", "pandas"} <= missing
    places = {part for run in runs_of(WITH_RABBITMQ) for part in run if part.startswith("tests/")}
    command = [sys.executable, "-c", f"MISSING = {missing!r}\n{COLLECT}", *places, *IGNORED]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
