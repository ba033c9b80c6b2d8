"""A real PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg

from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import ManagedProcess, wait_until
from tests.support import TIMEOUT
from tests.support.skips import left_out

#: The account of the server if the tests run as root, which PostgreSQL refuses.
ACCOUNT = "postgres"

#: A password that needs encoding in a URL. No output may contain it.
PASSWORD = "p@ss/w:rd-hunter2"


def postgres_programs() -> Path:
    """Return the newest folder with ``initdb`` and ``postgres``."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4])
    )
    on_path = shutil.which("postgres")
    programs = found[-1].parent if found else Path(on_path).resolve().parent if on_path else None
    if programs is None or not (programs / "initdb").exists() or not _may_run():
        raise left_out(
            f"needs a PostgreSQL server, and its account {ACCOUNT!r}: apt install postgresql"
        )
    return programs


def _may_run() -> bool:
    """Return whether an account exists that can run the server."""
    try:
        return os.geteuid() != 0 or bool(pwd.getpwnam(ACCOUNT) and shutil.which("setpriv"))
    except KeyError:
        return False


class PostgresServer(ManagedProcess):
    """One server; each test gets an empty database.

    Parameters
    ----------
    programs
        Folder with its programs.
    folder
        New folder that ``ACCOUNT`` may enter.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self.port = free_port()
        self._numbers = count(1)
        prefix: list[str] = []
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT)
            os.chown(folder, account.pw_uid, account.pw_gid)
            prefix = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={account.pw_gid}", "--init-groups"]
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        data = folder / "data"
        subprocess.run(
            [
                *prefix, str(programs / "initdb"), "--pgdata", str(data), "--username", "tester",
                "--auth", "scram-sha-256", "--pwfile", str(password), "--encoding", "UTF8",
                "--locale", "C", "--no-sync",
            ],
            check=True, capture_output=True, timeout=TIMEOUT, cwd=folder,
        )  # fmt: skip
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "timezone": "Asia/Tokyo",
        }
        options = [part for item in settings.items() for part in ("-c", "=".join(map(str, item)))]
        command = [*prefix, str(programs / "postgres"), "-D", str(data), *options]
        super().__init__(command, cwd=folder, log_file=folder / "log", name="postgres")

    def wait_ready(self) -> None:
        """Wait until the server accepts connections."""
        wait_until(self._answers, TIMEOUT, lambda: f"PostgreSQL to be ready:\n{self.log}")

    def new_database(self) -> str:
        """Make an empty database and return its URL, as a user writes it."""
        name = f"test_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql://tester:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/{name}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Connect to a database, without transactions."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="tester",
            password=PASSWORD,
            dbname=database,
            autocommit=True,
        )

    def disconnect_clients(self, url: str) -> None:
        """End the connections to a database."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [url.rpartition("/")[2]],
            )

    def _answers(self) -> bool:
        if not self.running:
            raise RuntimeError(f"PostgreSQL has ended:\n{self.log}")
        with suppress(psycopg.OperationalError), self.connect():
            return True
        return False


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server, and remove all its files afterwards."""
    programs = postgres_programs()
    # Other accounts may not enter pytest's own folders.
    folder = Path(tempfile.mkdtemp(prefix="delayq-postgres-"))
    try:
        server = PostgresServer(programs, folder)
        with server:
            server.wait_ready()
            yield server
            server.send_signal(signal.SIGINT)  # a fast stop, without waiting for clients
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
