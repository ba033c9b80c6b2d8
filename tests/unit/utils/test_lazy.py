"""Names whose modules are imported at the first use."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_delayq
from celery_delayq.app import DelayQ
from celery_delayq.schedule.client import Schedule
from celery_delayq.utils.lazy import LazyName, lazy_attributes, resolved

MODULE = "lazily_imported"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a module that nothing imports."""
    (tmp_path / f"{MODULE}.py").write_text("def add(*numbers):\n    return sum(numbers)\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(MODULE, None)


def test_a_name_is_imported_when_it_is_called() -> None:
    add = LazyName(MODULE).add
    assert MODULE not in sys.modules

    assert add(1, 2) == 3
    assert MODULE in sys.modules


def test_a_name_is_iterated_over() -> None:
    assert [*LazyName("string:digits")] == [*"0123456789"]


def test_an_attribute_of_a_class_is_a_name() -> None:
    lazy = LazyName("celery_delayq.schedule.client:Schedule").get

    assert lazy.resolve() is Schedule.get
    assert (lazy.__module__, lazy.__qualname__, lazy.__name__) == (
        Schedule.get.__module__,
        Schedule.get.__qualname__,
        Schedule.get.__name__,
    )
    assert repr(lazy) == "LazyName('celery_delayq.schedule.client:Schedule.get')"


def test_a_replaced_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    add = LazyName(f"{MODULE}:add")
    add.resolve()
    monkeypatch.setattr(f"{MODULE}.add", lambda: "replaced")

    assert add() == "replaced"


def test_a_missing_module_or_name_is_an_error_at_the_call() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"celery_delayq\.none"):
        LazyName("celery_delayq.none").begin()
    with pytest.raises(AttributeError, match="nothing"):
        LazyName("celery_delayq.errors").nothing()


def test_only_lazy_names_are_resolved() -> None:
    assert resolved(LazyName("celery_delayq.app:DelayQ")) is DelayQ
    assert resolved(len) is len


def test_the_package_has_its_public_names_and_no_others() -> None:
    public = {name: getattr(celery_delayq, name) for name in celery_delayq.__all__}

    assert public["DelayQ"] is DelayQ
    assert {*celery_delayq.__all__} <= {*dir(celery_delayq)}
    with pytest.raises(AttributeError, match="'celery_delayq' has no attribute 'Later'"):
        _ = celery_delayq.Later  # type: ignore[attr-defined]
    names = inspect.getclosurevars(celery_delayq.__getattr__).nonlocals["paths"]
    assert {*names} == {*celery_delayq.__all__}


def test_a_name_of_a_package_is_imported_once() -> None:
    package = "celery_delayq.utils"
    find = lazy_attributes(package, {"lazy": ("LazyName",)})

    assert find("LazyName") is LazyName
    assert vars(sys.modules[package]).pop("LazyName") is LazyName
