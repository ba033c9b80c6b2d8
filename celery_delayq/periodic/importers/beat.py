"""Reads the times and numbers of runs of entries from the file of ``celery beat``.

The definitions come from the app's code. The file has pickles, and a pickle can name any class or
function. Only a fixed set of classes and functions is used, for times and entries. An object of any
other class becomes a :class:`_Stranger`.
"""

from __future__ import annotations

import dbm
import fcntl
import io
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.utils.time import LocalTimezone
from dateutil.tz import tz as dateutil_tz

from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.importers import FoundEntry, code_of, found_by, in_utc
from celery_delayq.utils.credentials import path_of

#: Suffixes that the variants of dbm add to a file name.
_SUFFIXES = ("", ".db", ".dat", ".dir", ".bak", ".pag", "-wal")


def entries(app: Celery, path: str | Path | None = None) -> Iterator[FoundEntry]:
    """Read the file of ``celery beat``, and leave it unchanged.

    Parameters
    ----------
    path : str | Path | None
        As in ``celery beat --schedule``; None for the setting ``beat_schedule_filename``.

    Raises
    ------
    ConfigError
        There is no such file, the file cannot be read, or beat has it open.
    """
    given = app.conf.beat_schedule_filename if path is None else path
    place = path_of(given, "the file of celery beat", ConfigError)
    code = code_of(app)
    kept = _load(place)
    return (found_by(partial(_read, entry, code), str(name)) for name, entry in kept.items())


def _read(entry: Any, code: Mapping[str, Definition | DelayQError], found: FoundEntry) -> None:
    in_code = code.get(found.name)
    if in_code is None:
        found.problem, found.over = "it is not in the code any more; beat forgets it, too", True
        return
    if not isinstance(in_code, Definition):
        raise ConfigError(f"its code is wrong: {in_code}")
    found.definition = in_code
    if not isinstance(entry, _Entry):
        kind = entry.path if isinstance(entry, _Stranger) else type(entry).__name__
        raise ConfigError(
            f"it is a {kind}, of which nothing was read: expected celery.beat.ScheduleEntry"
        )
    last_run_at, count = entry.last_run_at, entry.total_run_count
    if not isinstance(last_run_at, datetime) or not isinstance(count, int):
        raise ConfigError(
            f"last_run_at={last_run_at!r}, total_run_count={count!r}: expected a datetime, a number"
        )
    last_run_at = in_utc(last_run_at)
    # If an entry has not run, beat stores the time at which the entry was added.
    found.last_run_at, found.since = (last_run_at, None) if count else (None, last_run_at)
    found.total_run_count = max(0, count)


# -- the file


def _load(place: Path) -> dict[Any, Any]:
    """Return the entries from a copy of the file, because opening a dbm file may change it."""
    files = [each for end in _SUFFIXES if (each := Path(f"{place}{end}")).is_file()]
    if not files:
        raise ConfigError(
            f"{place}: there is no such file; expected that of celery beat, as its --schedule or "
            "the setting beat_schedule_filename says"
        )
    before = _look(files)
    try:
        with tempfile.TemporaryDirectory(prefix="delayq-beat-") as folder:
            for each in files:
                _check_free(each)
                shutil.copyfile(each, Path(folder, each.name))
            text = _pickle_in(Path(folder, place.name))
        kept = _Reader(io.BytesIO(text)).load()
        if not isinstance(kept, dict):
            raise ValueError("its entries are no mapping")
    except ConfigError:
        raise
    except Exception as exc:  # of any variant of dbm, and of any pickle
        if _look(files) != before:
            raise _written(place) from exc
        raise ConfigError(
            f"{place}: this is no file of celery beat, or it is damaged, or was written by a "
            f"Python with another dbm: {type(exc).__name__}: {exc}"
        ) from exc
    if _look(files) != before:
        raise _written(place)
    return kept


def _pickle_in(place: Path) -> bytes:
    """Return the pickle of all entries."""
    with dbm.open(str(place), "r") as found:
        if b"entries" not in found:
            raise ValueError("it has no entries")
        return bytes(found[b"entries"])


def _look(files: list[Path]) -> list[tuple[int, int]]:
    """Return the modification times (ns) and sizes (bytes) of files, to detect changes."""
    seen = [each.stat() for each in files]
    return [(stat.st_mtime_ns, stat.st_size) for stat in seen]


def _check_free(file: Path) -> None:
    """Raise if a process has locked the file for writing, as GNU dbm does."""
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _written(file) from None


def _written(place: Path) -> ConfigError:
    return ConfigError(f"{place}: a celery beat has it open or writes it; stop it before")


# -- pickles


class _Stranger:
    """Stands for an object of an unknown class. Accepts all calls of an unpickler."""

    path = ""

    def __new__(cls, *_: Any, **__: Any) -> _Stranger:
        return object.__new__(cls)

    def _ignore(self, *_: Any) -> None: ...

    __setstate__ = __setitem__ = append = extend = add = _ignore


class _Entry:
    """Stands for a ``celery.beat.ScheduleEntry``. Keeps only the time and number of runs."""

    def __init__(self, *args: Any) -> None:
        _, _, self.last_run_at, self.total_run_count = (*args, None, None, None, None)[:4]


class _Reader(pickle.Unpickler):
    """Unpickles times and entries. Any other object becomes a :class:`_Stranger`."""

    def find_class(self, module: str, name: str) -> Any:
        known = _CLASSES.get((module, name))
        if known is not None:
            return known
        path = f"{module}.{name}"
        make = _TIMES.get((module, name))
        return _stranger(path) if make is None else partial(_made, make, _stranger(path))


def _stranger(path: str) -> type[_Stranger]:
    return type("_Stranger", (_Stranger,), {"path": path})


def _made(make: Callable[..., Any], stranger: Callable[..., Any], *args: Any) -> Any:
    """Return the made object; on an error a stranger, so that other entries stay readable."""
    try:
        return make(*args)
    except Exception:
        return stranger()


class _Zones:
    """Stands for the class ZoneInfo, whose pickles get its method ``_unpickle`` by ``getattr``."""


def _attribute(owner: Any, name: str) -> Any:
    if (owner, name) != (_Zones, "_unpickle"):
        raise ValueError("another attribute")
    return partial(_made, lambda key, *_: ZoneInfo(key), _stranger("zoneinfo.ZoneInfo"))


def _pytz(name: str, offset: float | None = None, *_: Any) -> tzinfo:
    """Return the time zone in a pickle of pytz; a fixed offset if the pickle has one."""
    return ZoneInfo(name) if offset is None else timezone(timedelta(seconds=offset))


_CLASSES: dict[tuple[str, str], type] = {
    ("celery.beat", "ScheduleEntry"): _Entry,
    ("zoneinfo", "ZoneInfo"): _Zones,
    ("dateutil.tz.tz", "tzutc"): dateutil_tz.tzutc,
    ("dateutil.tz.tz", "tzlocal"): dateutil_tz.tzlocal,
}

_TIMES: dict[tuple[str, str], Callable[..., Any]] = {
    ("datetime", "datetime"): datetime,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("builtins", "getattr"): _attribute,
    ("celery.utils.time", "LocalTimezone"): LocalTimezone,
    ("pytz", "_UTC"): lambda: timezone.utc,
    ("pytz", "_p"): _pytz,
}
