"""A private Redis server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_delayq.embedded.child_process import ChildProcess, spawn
from celery_delayq.embedded.find import find_redis_server
from celery_delayq.embedded.ports import HOST, free_port
from celery_delayq.errors import EmbeddedRedisError

if TYPE_CHECKING:
    from typing_extensions import Self

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

_PORT_ATTEMPTS: Final = 20
_MAX_SOCKET_PATH_BYTES: Final = 100
_POLL_SECONDS: Final = 0.01


class EmbeddedRedis:
    """One private Redis (or Valkey) server; a context manager that starts and ends it.

    The data folder is kept over `stop`, `kill` and `restart`. A temporary folder is removed by
    `close`, at the end of the ``with`` block and at the end of Python. If Python is killed, the
    server ends and its temporary folder is removed, too.

    Parameters
    ----------
    executable
        Server program; the default is what `find_redis_server` finds.
    data_dir
        Folder for data and log, created if missing and kept. The default is a temporary one.
    port
        TCP port on 127.0.0.1. The default is a free port, which stays the same over restarts.
    appendonly
        Whether each write is logged, so that a killed server keeps its data.
    appendfsync
        ``"always"``, ``"everysec"`` or ``"no"``.
    password
        Password that clients must give. `url` has the password; the process list and the log do
        not show it.
    unix_socket
        True for a socket in the data folder, or the path of a socket; in addition to TCP.
    options
        Further settings, by their names in ``redis.conf``. A string is the text after the name;
        booleans become ``yes`` and ``no``.
    timeout
        Seconds to wait for the server to answer, and to end.

    Raises
    ------
    RedisServerNotFound
        There is no server program.
    ValueError
        An option has its own parameter, or cannot be written into ``redis.conf``.
    """

    def __init__(
        self,
        *,
        executable: str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        port: int | None = None,
        appendonly: bool = True,
        appendfsync: str = "everysec",
        password: str | None = None,
        unix_socket: bool | str | os.PathLike[str] = False,
        options: Mapping[str, ConfigValue] | None = None,
        timeout: float = 20.0,
    ) -> None:
        self._config = {
            "save": "",
            "appendonly": appendonly,
            "appendfsync": appendfsync,
            **_checked_options(options or {}),
        }
        self._password = _checked_text("password", password) if password else None
        self._port = port
        self._timeout = timeout
        self.executable = find_redis_server(executable)
        self._child = ChildProcess(self, "TERM", "delayq-redis-" if data_dir is None else "")
        self.data_dir = (self._child.temp_dir or Path(os.fspath(data_dir or "."))).absolute()
        self.unix_socket = self._socket_path(unix_socket)

    def _socket_path(self, wish: bool | str | os.PathLike[str]) -> Path | None:
        if wish is False:
            return None
        path = self.data_dir / "redis.sock" if wish is True else Path(wish).absolute()
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"unix_socket {str(path)!r} is longer than {_MAX_SOCKET_PATH_BYTES} bytes, "
                "which the operating system refuses: choose a shorter path"
            )
        return path

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "not running"
        return f"<EmbeddedRedis {HOST}:{self._port or '(no port yet)'}, {state}>"

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server and wait until it answers; do nothing if it already runs.

        Raises
        ------
        EmbeddedRedisError
            The server ended or did not answer in time. The message ends with its log.
        """
        if self.running:
            return self
        if not self._child.close.alive:
            raise EmbeddedRedisError(f"{self!r} was closed; make a new one")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        chooses_port = self._port is None
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if chooses_port:
                self._port = free_port()
            self._launch()
            try:
                self.wait_ready()
            except EmbeddedRedisError:
                is_port_in_use = "Address already in use" in self._child.log_since_start
                self._child.end()
                if not (is_port_in_use and chooses_port) or attempt == _PORT_ATTEMPTS:
                    if chooses_port:
                        self._port = None  # the next start chooses again
                    raise
            else:
                break
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Shut the server down, wait until it has ended, and keep its data.

        Parameters
        ----------
        timeout
            Seconds after which the server is killed; the default is that of the constructor.
        """
        self._child.end(self._timeout if timeout is None else timeout)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would, and keep its data."""
        self._child.end()

    def restart(self, timeout: float | None = None) -> Self:
        """Stop the server as `stop` does, and start it on the same port and data."""
        self.stop(timeout)
        return self.start()

    def close(self) -> None:
        """Stop the server for good and remove a temporary data folder."""
        self._child.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the server has ended; return its exit code. The server is not stopped.

        Parameters
        ----------
        timeout
            Seconds; by default there is no limit.

        Raises
        ------
        subprocess.TimeoutExpired
            The server still runs after `timeout`.
        """
        return self._process().wait(timeout)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the server answers and has loaded its data.

        Parameters
        ----------
        timeout
            Seconds; the default is that of the constructor.

        Raises
        ------
        EmbeddedRedisError
            The server ended or did not answer in time. The message ends with its log.
        """
        deadline = monotonic() + (self._timeout if timeout is None else timeout)
        process = self._process()
        last_error: RedisError | None = None
        with self.client(
            retry=Retry(NoBackoff(), 0), socket_connect_timeout=0.5, socket_timeout=0.5
        ) as client:
            while True:
                try:
                    info: dict[str, Any] = client.info()
                    # Another server may use the port, and ours may not have noticed yet.
                    if info["process_id"] == process.pid and not info["loading"]:
                        return
                except RedisError as error:
                    last_error = error
                try:
                    code = process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    if monotonic() < deadline:
                        continue
                    reason = f"did not answer in time ({last_error or 'it was loading data'})"
                    raise self._failure(reason) from last_error
                raise self._failure(f"ended with code {code}") from last_error

    def _launch(self) -> None:
        try:
            self._child.start(self._spawn, self.log_file)
        except OSError as error:
            raise EmbeddedRedisError(f"{self.executable} cannot be run: {error}") from error
        stdin = self._process().stdin
        assert stdin is not None
        with suppress(BrokenPipeError), stdin as settings:  # wait_ready reports an ended server
            settings.write(self._settings().encode())

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        # Settings come by standard input, so the process list does not show the password.
        return spawn([self.executable, "-"], log, cwd=self.data_dir, stdin=subprocess.PIPE)

    def _settings(self) -> str:
        lines: dict[str, ConfigValue] = {
            "bind": HOST,
            "port": self.port,
            "dir": _quoted(str(self.data_dir)),
            "daemonize": False,
            **self._config,
        }
        if self._password:
            lines["requirepass"] = _quoted(self._password)
        if self.unix_socket:
            lines["unixsocket"] = _quoted(str(self.unix_socket))
        return "".join(f"{name} {_format_value(value)}\n" for name, value in lines.items())

    def _process(self) -> subprocess.Popen[bytes]:
        process = self._child.process
        if process is None:
            raise EmbeddedRedisError("the server is not running: call start()")
        return process

    # -- properties ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._child.running

    @property
    def returncode(self) -> int | None:
        """Exit code of the last run, or minus the signal's number; None while it runs."""
        return self._child.returncode

    @property
    def pid(self) -> int:
        """Process id of the running server (EmbeddedRedisError if it does not run)."""
        if not self.running:
            raise EmbeddedRedisError("the server is not running: call start()")
        return self._process().pid

    @property
    def host(self) -> str:
        """Always 127.0.0.1."""
        return HOST

    @property
    def port(self) -> int:
        """TCP port (EmbeddedRedisError before the first start, if no port was given)."""
        if self._port is None:
            raise EmbeddedRedisError("the port is chosen when the server starts: call start()")
        return self._port

    @property
    def url(self) -> str:
        """``redis://`` URL of database 0, with the password."""
        return self.url_for("redis")

    def url_for(self, scheme: str, database: int = 0) -> str:
        """Return the URL for another scheme, such as ``delayq+redis``, or database number."""
        return f"{scheme}://{self._user_info()}{HOST}:{self.port}/{database}"

    def socket_url(self, scheme: str = "redis+socket", database: int = 0) -> str:
        """Return the URL of the unix socket for kombu (EmbeddedRedisError without a socket)."""
        if self.unix_socket is None:
            raise EmbeddedRedisError("the server has no unix socket: give unix_socket=True")
        path = quote(str(self.unix_socket))
        return f"{scheme}://{self._user_info()}{path}?virtual_host={database}"

    def _user_info(self) -> str:
        return f":{quote(self._password, safe='')}@" if self._password else ""

    @property
    def version(self) -> str:
        """Version of the server program, such as ``"7.0.15"``."""
        output = subprocess.run(
            [self.executable, "--version"], capture_output=True, text=True, check=False
        ).stdout
        match = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
        if match is None:
            raise EmbeddedRedisError(f"{self.executable} --version shows no version: {output!r}")
        return match[1]

    @property
    def log_file(self) -> Path:
        """File that the server logs to."""
        return self.data_dir / "redis.log"

    def client(self, **options: Any) -> Redis:
        """Return a new client; `options` are those of ``redis.Redis``."""
        return Redis(**{"host": HOST, "port": self.port, "password": self._password, **options})

    def _failure(self, reason: str) -> EmbeddedRedisError:
        return EmbeddedRedisError(
            f"{self.executable} on port {self.port} {reason}. The end of its log:\n"
            f"{self._child.log_tail()}"
        )


def _checked_options(options: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    for name, value in options.items():
        if name.lower() in _OWN_OPTIONS:
            raise ValueError(f"option {name!r} cannot be set; use {_OWN_OPTIONS[name.lower()]}")
        _checked_text("option name", name)
        _checked_text(f"option {name!r}", str(value))
    return dict(options)


def _checked_text(what: str, text: str) -> str:
    if any(character in text for character in "\r\n\0"):
        raise ValueError(f"{what} must be one line without NUL")
    return text


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _format_value(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else '""'
