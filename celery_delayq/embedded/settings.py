"""Settings in the form of ``redis.conf``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ConfigValue = str | int | bool

_OWN_OPTIONS: Final = {
    "appendfsync": "appendfsync=",
    "appendonly": "appendonly=",
    "bind": "nothing, it is always 127.0.0.1",
    "daemonize": "nothing, it is always a child process",
    "dir": "data_dir=",
    "logfile": "nothing, it is always redis.log in the data folder",
    "port": "port=",
    "requirepass": "password=",
    "unixsocket": "unix_socket=",
}


def checked_options(options: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    for name, value in options.items():
        if name.lower() in _OWN_OPTIONS:
            raise ValueError(f"option {name!r} cannot be set; use {_OWN_OPTIONS[name.lower()]}")
        checked_text("option name", name)
        checked_text(f"option {name!r}", str(value))
    return dict(options)


def checked_text(what: str, text: str) -> str:
    if any(character in text for character in "\r\n\0"):
        raise ValueError(f"{what} must be one line without NUL")
    return text


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def written(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else '""'
