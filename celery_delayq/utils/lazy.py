"""Names whose modules are imported at the first use.

Celery imports this package in every process that sends a task, and at every start of ``celery``.
Such a process needs few of the modules. The others are named at the top of a module like this::

    if TYPE_CHECKING:
        from celery_delayq.schedule.client import Schedule
    else:
        Schedule = LazyName("celery_delayq.schedule.client:Schedule")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from importlib import import_module
from types import ModuleType
from typing import Any, cast

#: The modules of all lazy names of this process.
_MODULES: dict[str, None] = {}


class LazyName:
    """A module, class or function that is imported when it is called or iterated over.

    An attribute of a lazy name is a lazy name.

    Parameters
    ----------
    path : str
        ``"module"`` or ``"module:name"``.
    """

    def __init__(self, path: str) -> None:
        module, _, names = path.partition(":")
        _MODULES[module] = None
        self._module_name = module
        self._names = names.split(".") if names else []
        self._module: ModuleType | None = None
        # As of a function: Celery's signals and the table of changes read these.
        self.__module__ = module
        self.__qualname__ = names
        self.__name__ = self._names[-1] if names else module

    def __repr__(self) -> str:
        return f"LazyName({':'.join(filter(None, (self._module_name, self.__qualname__)))!r})"

    def __getattr__(self, name: str) -> LazyName:
        if name.startswith("__"):  # `inspect` looks for `__wrapped__` and others
            raise AttributeError(name)
        path = f"{self._module_name}:{'.'.join([*self._names, name])}"
        found = self.__dict__[name] = LazyName(path)
        return found

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.resolve()(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(cast("Any", self.resolve()))

    def resolve(self) -> Any:
        """Return the object of this name, and import its module if needed."""
        if self._module is None:
            self._module = import_module(self._module_name)
        return reduce(getattr, self._names, cast("Any", self._module))


def resolved(value: Any) -> Any:
    """Return the object of a lazy name; any other value unchanged."""
    return value.resolve() if isinstance(value, LazyName) else value


def lazy_attributes(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a function ``__getattr__`` for a package, which imports a name at its first use.

    Parameters
    ----------
    modules : Mapping[str, tuple[str, ...]]
        Names by the module, below the package, that defines them.
    """
    paths = {name: f"{package}.{module}" for module, names in modules.items() for name in names}
    _MODULES.update(dict.fromkeys(paths.values()))

    def __getattr__(name: str) -> Any:  # noqa: N807 - the name that Python calls
        if name not in paths:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(paths[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


def import_all() -> None:
    """Import the modules of all lazy names. A worker does this once, before it forks."""
    done: set[str] = set()
    while waiting := _MODULES.keys() - done:  # an imported module may have lazy names
        done |= waiting
        for name in sorted(waiting):
            import_module(name)
