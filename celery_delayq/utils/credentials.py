"""Keep users, passwords and tokens in URLs out of errors, logs and reprs. No I/O."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from celery_delayq.errors import ConfigError, DelayQError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def hide(url: Any) -> str:
    """Return a URL in quotes without its user, password and query; of other values the type."""
    if not isinstance(url, str):
        return f"of type {type(url).__name__}"
    # A password may hold any character, so all text before the last @ may be secret.
    before, at, behind = url.rpartition("@")
    scheme = _SCHEME.match(url)
    if at:
        # The text after the last @ may be the rest of a query.
        behind = "" if "?" in before else behind
        text = f"{scheme[0] if scheme else ''}…@{behind}"
    else:
        text = url
    text = re.split(r"[?#]", text, maxsplit=1)[0]
    return repr(text if len(text) <= 200 else text[:199] + "…")


def has_password(url: str) -> bool:
    """Return whether a URL, or several with ``;`` between them, has a password before an ``@``."""
    # Up to the last @: a password without URL quoting may hold any character.
    return any(":" in _SCHEME.sub("", part, count=1).rpartition("@")[0] for part in url.split(";"))


def check_folder(folder: str) -> None:
    """Refuse the URL of a folder with a password: Spark would show the password.

    Raises
    ------
    ConfigError
        The URL has a password.
    """
    if has_password(folder):
        raise ConfigError(
            f"folder {hide(folder)}: the URL has a password, which Spark would show; give the "
            "password by the settings of the file system, such as spark.hadoop.fs.s3a.secret.key"
        )


def path_of(given: Any, expected: str, error: type[DelayQError]) -> Path:
    """Return a path; refuse a URL without its scheme.

    Raises
    ------
    DelayQError
        The class *error*. The message has the text *expected* and shows no password.
    """
    if isinstance(given, str) and has_password(given) and not given.startswith(("/", ".")):
        raise error(
            f"{hide(given)}: expected {expected}; write ./name for a file whose name has : and @"
        )
    return Path(given)
