"""Keep users, passwords and tokens in URLs out of errors, logs and reprs. No I/O."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from celery_delayq.errors import ConfigError, DelayQError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def hide(url: Any) -> str:
    """Return what may be shown of anything that was given for a URL, in quotes."""
    if not isinstance(url, str):
        return f"of type {type(url).__name__}"
    # A password may hold any character, so what stands before the last @ may all be secret.
    before, at, behind = url.rpartition("@")
    scheme = _SCHEME.match(url)
    if at:
        # Behind it may be the rest of a query, too.
        behind = "" if "?" in before else behind
        text = f"{scheme[0] if scheme else ''}…@{behind}"
    else:
        text = url
    text = re.split(r"[?#]", text, maxsplit=1)[0]
    return repr(text if len(text) <= 200 else text[:199] + "…")


def has_password(url: str) -> bool:
    """Return whether a URL, or several with ``;`` between them, has a password before an ``@``."""
    # Up to the last @: a password that should have been quoted may have anything in it.
    return any(":" in _SCHEME.sub("", part, count=1).rpartition("@")[0] for part in url.split(";"))


def check_folder(folder: str) -> None:
    """Refuse the URL of a folder with a password, which Spark would show.

    Raises
    ------
    ConfigError
        It has one.
    """
    if has_password(folder):
        raise ConfigError(
            f"folder {hide(folder)}: it has a password, which Spark would show; give it by the "
            "settings of the file system, such as spark.hadoop.fs.s3a.secret.key"
        )


def path_of(given: Any, expected: str, error: type[DelayQError]) -> Path:
    """Return a path; a URL whose scheme was forgotten is none.

    Raises
    ------
    DelayQError
        The *error*, which says what was *expected* and shows no password.
    """
    if isinstance(given, str) and has_password(given) and not given.startswith(("/", ".")):
        raise error(
            f"{hide(given)}: expected {expected}; a file whose name has : and @ in it is "
            "given as ./name"
        )
    return Path(given)
