"""Private RabbitMQ nodes for tests and demos, on 127.0.0.1 only."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

from celery_delayq.embedded.child_process import ChildProcess
from celery_delayq.embedded.ports import HOST, free_port
from celery_delayq.errors import EmbeddedServerError, ServerNotFound

if TYPE_CHECKING:
    from typing_extensions import Self

#: Variable of the environment: the path of another server program, which has its own beside it.
SERVER_VARIABLE: Final = "DELAYQ_RABBITMQ_SERVER"

#: Debian's wrappers on PATH change the user and refuse others; the scripts behind them do not.
_DEBIAN_FOLDER: Final = "/usr/lib/rabbitmq/bin"

#: Seconds between two looks at whether a node listens.
_POLL_SECONDS: Final = 0.05
#: How often a node of a cluster is started until it stays: nodes that come up side by side ask each
#: other while they are half up, and one may end by it. A service manager starts it again, too.
_START_ATTEMPTS: Final = 3

#: Small, and idle when there is nothing to do: Erlang's schedulers spin otherwise.
_ERLANG_FLAGS: Final = (
    "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
)

_CONFIG: Final = """\
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 2GB
log.console = true
log.console.level = info
"""

#: How soon a message that RabbitMQ has not confirmed between two queues is sent again, in ms. Its
#: default is three minutes, which is how late messages are after a crash.
CONFIRM_TIMEOUT_MS: Final = 5000


class EmbeddedRabbitMQ:
    """Private RabbitMQ nodes that know each other; a context manager that starts and ends them.

    Parameters
    ----------
    nodes : int
        How many; more than one are a cluster.
    config : Mapping[str, str] | None
        More lines of ``rabbitmq.conf``.
    confirm_timeout : int | None
        ``dead_letter_worker_publisher_confirm_timeout`` in ms, None: RabbitMQ's default.
    timeout : float
        Seconds to wait for a node to listen, and to end.

    Raises
    ------
    ServerNotFound
        There is no ``rabbitmq-server``.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        config: Mapping[str, str] | None = None,
        confirm_timeout: int | None = CONFIRM_TIMEOUT_MS,
        timeout: float = 120.0,
    ) -> None:
        self._program = find_rabbitmq_server()
        self._config = dict(config or {})
        self._confirm_timeout = confirm_timeout
        self._timeout = timeout
        self._epmd = ChildProcess(self, "KILL", "delayq-rabbitmq-")
        assert self._epmd.temp_dir is not None
        self._folder = self._epmd.temp_dir
        # Nodes that start side by side would each make one.
        cookie = self._folder / ".erlang.cookie"
        cookie.write_text(uuid4().hex)
        cookie.chmod(0o400)
        self._epmd_port = free_port()
        self._nodes = [_Node(self, f"dq{number}") for number in range(nodes)]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *numbers: int) -> Self:
        """Start nodes, all by default, and wait until they listen.

        Raises
        ------
        EmbeddedServerError
            One ended or did not listen in time; the message ends with its log.
        """
        if not self._epmd.running:
            program = shutil.which("epmd")
            if program is None:
                raise ServerNotFound("no epmd was found: it comes with Erlang")
            command = [program, "-port", str(self._epmd_port), "-address", HOST]
            self._epmd.start(lambda log: _spawn(command, log, {}), self._folder / "epmd.log")
        waiting = self._chosen(numbers)
        for node in waiting:
            node.launch()
        deadline = monotonic() + self._timeout
        while waiting := [node for node in waiting if not node.listens()]:
            if monotonic() > deadline:
                raise waiting[0].error("did not listen in time")
            if any(node.launch_again() for node in waiting):
                deadline = monotonic() + self._timeout
            sleep(_POLL_SECONDS)
        return self

    def stop(self, *numbers: int, timeout: float | None = None) -> None:
        """Shut nodes down, all by default, and keep their data.

        Parameters
        ----------
        timeout : float | None
            Seconds after which a node is killed; the default is that of the constructor.
        """
        for node in self._chosen(numbers):
            node.child.end(self._timeout if timeout is None else timeout)

    def kill(self, *numbers: int) -> None:
        """End nodes with SIGKILL, as a crash would, and keep their data."""
        for node in self._chosen(numbers):
            node.child.end()

    def close(self) -> None:
        """End all for good and remove their data."""
        for node in self._nodes:
            node.child.close()
        self._epmd.close()

    @property
    def running(self) -> bool:
        """Whether the first node is alive."""
        return self._nodes[0].child.running

    @property
    def returncode(self) -> int | None:
        """Exit code of the first node, or minus the signal's number; None while it runs."""
        return self._nodes[0].child.returncode

    @property
    def pid(self) -> int:
        """Process id of the first node."""
        process = self._nodes[0].child.process
        assert process is not None
        return process.pid

    @property
    def port(self) -> int:
        """TCP port of the first node; the same after a restart."""
        return self._nodes[0].port

    @property
    def log_file(self) -> Path:
        """What the first node has logged over all its starts."""
        return self._nodes[0].log_file

    def url(self, scheme: str = "amqp", number: int = 0, vhost: str = "/") -> str:
        """Return the URL of a node."""
        port = self._nodes[number].port
        return f"{scheme}://guest:guest@{HOST}:{port}/{quote(vhost, safe='')}"

    def urls(self, scheme: str = "amqp", vhost: str = "/") -> str:
        """Return the URLs of all nodes, with ``;`` between them."""
        numbers = range(len(self._nodes))
        return ";".join(self.url(scheme, number, vhost) for number in numbers)

    def api_url(self, number: int = 0) -> str:
        """Return the URL of a node's management API, as Flower's ``--broker_api`` takes it."""
        return f"http://guest:guest@{HOST}:{self._nodes[number].api_port}/api/"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Call the management API; *path* is below ``/api/``.

        Raises
        ------
        EmbeddedServerError
            The answer is no success.
        """
        node = next(node for node in self._nodes if node.child.running)
        connection = HTTPConnection(HOST, node.api_port, timeout=self._timeout)
        user = b64encode(b"guest:guest").decode()
        headers = {"Authorization": f"Basic {user}", "Content-Type": "application/json"}
        try:
            connection.request(method, f"/api/{path}", json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise EmbeddedServerError(f"{method} /api/{path}: {answer.status} {text!r}")
        return json.loads(text) if text else None

    def control(self, *arguments: str, number: int = 0) -> str:
        """Call ``rabbitmqctl`` for a node; return what it prints.

        Raises
        ------
        EmbeddedServerError
            It fails.
        """
        node = self._nodes[number]
        done = subprocess.run(
            [_find("rabbitmqctl"), "--node", f"{node.name}@localhost", "--quiet", *arguments],
            env={**os.environ, **node.environment()},
            capture_output=True,
            text=True,
            timeout=self._timeout,
            check=False,
        )
        if done.returncode:
            raise EmbeddedServerError(f"rabbitmqctl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def new_vhost(self) -> str:
        """Make an empty virtual host that is up on all nodes, and return its name."""
        name = f"test-{uuid4().hex[:12]}"
        # Each node gives up starting it after some seconds, which a busy machine needs, and the one
        # that was asked may hang up then.
        with suppress(EmbeddedServerError, RemoteDisconnected):
            self.ask("PUT", f"vhosts/{name}", {})
        deadline = monotonic() + self._timeout
        # An empty list until it is begun.
        while not (nodes := self.ask("GET", f"vhosts/{name}")["cluster_state"]):
            if monotonic() > deadline:
                raise self._nodes[0].error(f"has not begun virtual host {name} in time")
            sleep(_POLL_SECONDS)
        for node in [node for node, state in nodes.items() if state != "running"]:
            self.ask("POST", f"vhosts/{name}/start/{node}")
        self.ask(
            "PUT", f"permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"}
        )
        return name

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host, if there is one and a node is up.

        Each queue of it costs the nodes some work, also where nobody uses it.
        """
        if not any(node.child.running for node in self._nodes):
            return
        if any(each["name"] == name for each in self.ask("GET", "vhosts")):
            self.ask("DELETE", f"vhosts/{name}")

    def log(self, number: int = 0) -> str:
        """Return what a node has logged since its start."""
        node = self._nodes[number]
        return node.child.log_since_start(node.log_file)

    def _chosen(self, numbers: Sequence[int]) -> list[_Node]:
        return [self._nodes[number] for number in numbers] or self._nodes

    def _conf(self) -> str:
        lines = [f"{name} = {value}" for name, value in self._config.items()]
        if len(self._nodes) > 1:
            lines.append("cluster_formation.peer_discovery_backend = classic_config")
            lines += [
                f"cluster_formation.classic_config.nodes.{number} = {node.name}@localhost"
                for number, node in enumerate(self._nodes, 1)
            ]
        return _CONFIG + "\n".join(lines) + "\n"

    def _advanced(self) -> str:
        if self._confirm_timeout is None:
            return "[].\n"
        wait = f"{{dead_letter_worker_publisher_confirm_timeout, {self._confirm_timeout}}}"
        return f"[{{rabbit, [{wait}]}}].\n"


class _Node:
    def __init__(self, owner: EmbeddedRabbitMQ, name: str) -> None:
        self.name = name
        self._owner = owner
        self._folder = owner._folder / name
        self._folder.mkdir()
        self.port = free_port()
        self.api_port = free_port()
        self._distribution_port = free_port()
        self.log_file = self._folder / "log"
        self.child = ChildProcess(self, "KILL")
        self._ended = 0

    def launch(self) -> None:
        if self.child.running:
            return
        owner, folder = self._owner, self._folder
        api = f"management.tcp.ip = {HOST}\nmanagement.tcp.port = {self.api_port}\n"
        (folder / "rabbitmq.conf").write_text(owner._conf() + api)
        (folder / "advanced.config").write_text(owner._advanced())
        (folder / "plugins").write_text("[rabbitmq_management].\n")
        environment = {
            **self.environment(),
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-",
            "ERL_CRASH_DUMP": str(folder / "crash.dump"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG_FLAGS,
            "RUNNING_UNDER_SYSTEMD": "true",  # so that the script becomes the node itself
        }
        self.child.start(lambda log: _spawn([owner._program], log, environment), self.log_file)

    def environment(self) -> dict[str, str]:
        """Return what Erlang needs to find the nodes of this server."""
        return {
            "HOME": str(self._owner._folder),  # all nodes of a cluster have one cookie
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._owner._epmd_port),
        }

    def launch_again(self) -> bool:
        """Launch it if it has ended, as far as nodes that come up side by side may end."""
        code = self.child.returncode
        if code is None:
            return False
        self._ended += 1
        if len(self._owner._nodes) == 1 or self._ended == _START_ATTEMPTS:
            raise self.error(f"ended with code {code}")
        self.launch()
        return True

    def listens(self) -> bool:
        try:
            for port in (self.port, self.api_port):
                socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            return False
        self._ended = 0
        return True

    def error(self, what: str) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"{self._owner._program} on port {self.port} {what}. The end of its log:\n"
            f"{self.child.log_tail(self.log_file)}"
        )


def find_rabbitmq_server() -> str:
    """Return the server program to start.

    ``DELAYQ_RABBITMQ_SERVER`` in the environment names it; by default it is looked for where Debian
    has it, then on PATH.

    Raises
    ------
    ServerNotFound
        There is none.
    """
    return _find("rabbitmq-server")


def _find(name: str) -> str:
    if chosen := os.environ.get(SERVER_VARIABLE):
        beside = Path(chosen).with_name(name)
        if found := shutil.which(beside):
            return found
        raise ServerNotFound(f"{SERVER_VARIABLE}={chosen}: {beside} is no program that can be run")
    for program in (f"{_DEBIAN_FOLDER}/{name}", name):
        if found := shutil.which(program):
            return found
    raise ServerNotFound(
        "no rabbitmq-server was found; Debian, Ubuntu: apt install rabbitmq-server"
    )


def _spawn(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
