"""Private RabbitMQ nodes for tests and demos, on 127.0.0.1 only."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

from celery_delayq.embedded.child_process import ChildProcess, spawn
from celery_delayq.embedded.ports import HOST, free_port
from celery_delayq.errors import EmbeddedServerError, ServerNotFound

if TYPE_CHECKING:
    from typing_extensions import Self

#: Environment variable with the path of another server program. The other programs of RabbitMQ are
#: expected in the same folder.
SERVER_VARIABLE: Final = "DELAYQ_RABBITMQ_SERVER"

#: Folder with the scripts that Debian's wrappers on PATH call. Unlike the wrappers, the scripts
#: accept any user.
_DEBIAN_FOLDER: Final = "/usr/lib/rabbitmq/bin"

#: Seconds between two checks whether a node listens.
_POLL_SECONDS: Final = 0.05
#: Most starts of a node of a cluster. Nodes that start at the same time connect to each other
#: before they are ready, and a node may end then. A service manager would restart it, too.
_START_ATTEMPTS: Final = 3

#: Nodes and ``rabbitmqctl`` connect to nodes from an address that no client has. If a client had
#: the same address and port, RabbitMQ 3.10 would end its management API: ``rabbit_net:dist_info``
#: expects one connection of each address and port. Linux alone has the address without set-up.
_CONNECT_FLAGS: Final = (
    "-kernel inet_dist_connect_options [{ip,{127,0,0,2}}]" if sys.platform == "linux" else ""
)

#: Flags for two schedulers that sleep without work. By default the schedulers of Erlang spin.
_ERLANG_FLAGS: Final = (
    "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none "
    + _CONNECT_FLAGS
)

_CONFIG: Final = """\
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 2GB
log.console = true
log.console.level = info
"""

#: Time in ms after which RabbitMQ sends a message between two queues again if it was not confirmed.
#: RabbitMQ's default is three minutes, and messages are so late after a crash.
CONFIRM_TIMEOUT_MS: Final = 5000


class EmbeddedRabbitMQ:
    """Private RabbitMQ nodes, one or a cluster; a context manager that starts and ends them.

    Parameters
    ----------
    nodes : int
        Number of nodes; several nodes are a cluster.
    port, api_port : int | None
        TCP ports of the first node, and of its management API; the next nodes have the next ports.
        The default are free ports.
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
        port: int | None = None,
        api_port: int | None = None,
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
        # Without this file, nodes that start at the same time make a cookie each.
        cookie = self._folder / ".erlang.cookie"
        self._cookie = uuid4().hex
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        self._epmd_port = free_port()
        self._nodes = [
            _Node(
                self,
                f"dq{number}",
                free_port() if port is None else port + number,
                free_port() if api_port is None else api_port + number,
            )
            for number in range(nodes)
        ]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *numbers: int) -> Self:
        """Start nodes, all by default, and wait until they listen.

        Raises
        ------
        EmbeddedServerError
            A node ended or did not listen in time. The message ends with the log of the node.
        """
        if not self._epmd.running:
            program = shutil.which("epmd")
            if program is None:
                raise ServerNotFound("no epmd was found: it comes with Erlang")
            command = [program, "-port", str(self._epmd_port), "-address", HOST]
            self._epmd.start(lambda log: spawn(command, log), self._folder / "epmd.log")
        waiting = self._chosen(numbers)
        for node in waiting:
            node.launch()
        deadline = monotonic() + self._timeout
        while waiting := [node for node in waiting if not node.is_listening()]:
            if monotonic() > deadline:
                raise waiting[0].error("did not listen in time")
            if any(node.relaunch_if_ended() for node in waiting):
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
        """End all nodes for good and remove their data."""
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
        """The log file of the first node, for all its starts."""
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
            The status of the answer is an error.
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
        if answer.status >= 500:
            raise node.error(f"answered {method} /api/{path} with {answer.status} {text!r}")
        if answer.status >= 300:
            raise EmbeddedServerError(f"{method} /api/{path}: {answer.status} {text!r}")
        return json.loads(text) if text else None

    def control(self, *arguments: str, number: int = 0) -> str:
        """Call ``rabbitmqctl`` for a node; return its output.

        Raises
        ------
        EmbeddedServerError
            The command failed.
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

    def evaluate(self, expression: str, *, number: int = 0) -> str:
        """Evaluate an Erlang expression in a node; return its value as Erlang prints it.

        ``erl_call`` of Debian's package erlang-base takes some ms. Without it
        ``rabbitmqctl eval`` takes a second.

        Raises
        ------
        EmbeddedServerError
            The expression failed.
        """
        program = shutil.which("erl_call")
        if program is None:
            return self.control("eval", f"{expression}.", number=number).strip()
        node = self._nodes[number]
        printed = f'io_lib:format("~tp", [begin {expression} end])'
        done = subprocess.run(
            [program, "-n", f"{node.name}@localhost", "-c", self._cookie, "-e"],
            input=f"base64:encode_to_string(unicode:characters_to_binary({printed})).\n",
            env={**os.environ, **node.environment()},
            capture_output=True,
            text=True,
            timeout=self._timeout,
            check=False,
        )
        found = re.fullmatch(r'\{ok, "(.*)"\}\s*', done.stdout, re.DOTALL)
        if found is None:
            raise EmbeddedServerError(f"{expression}: {done.stdout}{done.stderr}")
        return b64decode(found[1]).decode()

    def new_vhost(self) -> str:
        """Make an empty virtual host that runs on all nodes, and return its name."""
        name = f"test-{uuid4().hex[:12]}"
        # On a busy machine a node may give up starting the virtual host, and close the connection.
        with suppress(EmbeddedServerError, RemoteDisconnected):
            self.ask("PUT", f"vhosts/{name}", {})
        deadline = monotonic() + self._timeout
        # The list is empty until a node starts the virtual host.
        while not (nodes := self.ask("GET", f"vhosts/{name}")["cluster_state"]):
            if monotonic() > deadline:
                raise self._nodes[0].error(f"did not start virtual host {name} in time")
            sleep(_POLL_SECONDS)
        for node in [node for node, state in nodes.items() if state != "running"]:
            self.ask("POST", f"vhosts/{name}/start/{node}")
        self.ask(
            "PUT", f"permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"}
        )
        return name

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host, if it exists and a node runs.

        Even unused queues of a virtual host cost the nodes some work.
        """
        if not any(node.child.running for node in self._nodes):
            return
        if any(each["name"] == name for each in self.ask("GET", "vhosts")):
            self.ask("DELETE", f"vhosts/{name}")

    def log(self, number: int = 0) -> str:
        """Return the log of a node since its start."""
        return self._nodes[number].child.log_since_start

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
    def __init__(self, owner: EmbeddedRabbitMQ, name: str, port: int, api_port: int) -> None:
        self.name = name
        self._owner = owner
        self._folder = owner._folder / name
        self._folder.mkdir()
        self.port, self.api_port = port, api_port
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
            "RUNNING_UNDER_SYSTEMD": "true",  # so that the node replaces the process of the script
        }
        self.child.start(lambda log: spawn([owner._program], log, env=environment), self.log_file)

    def environment(self) -> dict[str, str]:
        """Return the variables by which Erlang finds the nodes of this server."""
        return {
            "HOME": str(self._owner._folder),  # all nodes of a cluster have one cookie
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._owner._epmd_port),
            "RABBITMQ_CTL_ERL_ARGS": _CONNECT_FLAGS,
        }

    def relaunch_if_ended(self) -> bool:
        """Launch the node again if it has ended; return whether it had.

        Raises
        ------
        EmbeddedServerError
            The node has ended too often, or there is only one node.
        """
        code = self.child.returncode
        if code is None:
            return False
        self._ended += 1
        if len(self._owner._nodes) == 1 or self._ended == _START_ATTEMPTS:
            raise self.error(f"ended with code {code}")
        self.launch()
        return True

    def is_listening(self) -> bool:
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
            f"{self.child.log_tail()}"
        )


def find_rabbitmq_server() -> str:
    """Return the server program to start.

    The program is that of the environment variable ``DELAYQ_RABBITMQ_SERVER``, else that in
    Debian's folder, else that on PATH.

    Raises
    ------
    ServerNotFound
        There is no server program.
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
