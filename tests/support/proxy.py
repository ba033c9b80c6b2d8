"""A proxy between a client and Redis that breaks the connection where a test wants it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Proxy:
    """Forwards bytes on a free loopback port; :meth:`drop_reply` is where it gets interesting."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._marker: bytes | None = None
        self._execute = True
        self.dropped = threading.Event()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.close()

    def drop_reply(self, marker: bytes) -> None:
        """Let the server execute the next command with *marker*, then cut before its reply."""
        self._marker, self._execute = marker, True
        self.dropped.clear()

    def drop_request(self, marker: bytes) -> None:
        """Cut the connection instead of passing on the next command with *marker*."""
        self._marker, self._execute = marker, False
        self.dropped.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Pass requests on; replies come back in a second thread until one is to be dropped."""
        swallow = threading.Event()
        threading.Thread(target=self._reply, args=(client, server, swallow), daemon=True).start()
        with contextlib.suppress(OSError):
            while request := client.recv(1 << 20):
                if self._marker is not None and self._marker in request:
                    self._marker = None
                    swallow.set()
                    if self._execute:
                        server.sendall(request)
                    else:
                        self._cut(client, server)
                    continue
                server.sendall(request)
        self._cut(client, server)

    def _reply(
        self, client: socket.socket, server: socket.socket, swallow: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while reply := server.recv(1 << 20):
                if swallow.is_set():
                    break
                client.sendall(reply)
        self._cut(client, server)

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.dropped.set()
