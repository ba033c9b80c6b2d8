"""A proxy before Redis that cuts connections at chosen calls.

The proxy reads the protocol, so a fault hits one call: the n-th with the name of a command or a
script.

>>> with Proxy(server.port) as proxy:                                   # doctest: +SKIP
...     rule = proxy.on("dispatch/promote", Fault.DROP_REPLY, nth=3)
...     assert rule.fired.wait(TIMEOUT)
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from celery_delayq.embedded.ports import free_port
from celery_delayq.store.scripting import scripts
from tests.support import TIMEOUT
from tests.support.resp import Frames, arguments

_CHUNK = 1 << 18


class Fault(Enum):
    """The fault of a call."""

    DROP_REQUEST = "the connection is cut before the server gets the request"
    DROP_REPLY = "the server executes it, and the connection is cut before the reply"
    RESET = "the server executes it, and the connection is reset (RST) before the reply"
    STALL = "half of the reply comes, then nothing, then the connection is cut"
    DELAY = "the reply comes late"
    REFUSE = "the server does not get the request, and the reply is an error"


#: Faults of a reply.
ON_REPLY = (Fault.DROP_REPLY, Fault.RESET, Fault.STALL, Fault.DELAY)


@dataclass
class Rule:
    """One planned fault.

    Parameters
    ----------
    what
        Name of a script, name of a command in capitals, or bytes in the request.
    fault
        The fault.
    nth
        The fault hits the n-th matching call, counted from 1 since the rule was added.
    seconds
        Time by which a reply is late or stalled.
    answer
        The error that is the reply.
    then
        Called at the moment of the fault, before the cut. It must not block.
    """

    what: str | bytes
    fault: Fault
    nth: int = 1
    seconds: float = 0.0
    answer: str = "ERR refused"
    then: Callable[[], object] = lambda: None
    fired: threading.Event = field(default_factory=threading.Event)
    _seen: int = 0

    def count(self, call: Call) -> bool:
        """Count *call* if the rule matches it; return whether it is the n-th one."""
        is_match = (
            self.what in call.raw if isinstance(self.what, bytes) else self.what == call.label
        )
        self._seen += is_match
        return is_match and self._seen == self.nth

    def fire(self) -> None:
        """Set the event of the rule."""
        self.then()
        self.fired.set()


@dataclass(frozen=True)
class Call:
    """One request: its bytes, and the name of its script or command."""

    raw: bytes
    label: str

    @classmethod
    def read(cls, raw: bytes) -> Call:
        """Read the name of the call in *raw*."""
        parts = arguments(raw)
        name = next(parts, b"").upper().decode("ascii", "replace")
        if name in ("EVALSHA", "EVAL"):
            name = _script_names().get(next(parts, b""), name)
        return cls(raw, name)


@cache
def _script_names() -> dict[bytes, str]:
    """Return the names of our scripts by SHA1 and by source."""
    known = [scripts.load(name) for name in scripts.names_with_variants()]
    return {key.encode(): each.name for each in known for key in (each.sha, each.source)}


@dataclass(frozen=True)
class Refusal:
    """Our own error reply to a call that the server does not get."""

    reply: bytes


@dataclass(eq=False)
class _Link:
    """A client's connection, our connection to the server, and the calls without a reply.

    A client gets replies in the order of its calls. So a refusal waits for earlier replies.
    """

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    pending: deque[Call | Refusal] = field(default_factory=deque)
    subscribed: bool = False

    def refuse(self, answer: str) -> None:
        """Answer a request with an error, after the replies to earlier requests."""
        self.pending.append(Refusal(f"-{answer}\r\n".encode()))
        self.write_refusals()

    def write_refusals(self) -> None:
        """Write the refusals before the next call of the server."""
        while self.pending and isinstance(refusal := self.pending[0], Refusal):
            self.pending.popleft()
            self.client.write(refusal.reply)

    def cut(self, *, reset: bool = False) -> None:
        if reset:
            linger = struct.pack("ii", 1, 0)  # RST instead of FIN
            for each in (self.client, self.server):
                raw: socket.socket = each.get_extra_info("socket")
                with suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy:
    """Forwards connections to a free loopback port; a context manager.

    Parameters
    ----------
    target_port
        Port of the server on 127.0.0.1. The server may stop and start again.

    Attributes
    ----------
    traffic
        How often each script and command was sent.
    largest
        Bytes of the largest request of each, or of its reply.
    latency
        Seconds by which every reply is late.
    """

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.traffic: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self.latency = 0.0
        self._target = target_port
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._holding: frozenset[str] = frozenset()
        #: The calls that are blocked. Their connections forward nothing after them.
        self.blocked_calls: list[str] = []

    def __enter__(self) -> Proxy:
        self._thread.start()
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        self._loop.close()

    # -- faults of one call -------------------------------------------------------------------

    def on(self, what: str | bytes, fault: Fault, **options: Any) -> Rule:
        """Add a rule for *fault*; takes the arguments of `Rule`."""
        self._check(what)
        rule = Rule(what, fault, **options)
        self._rules = [*self._rules, rule]
        return rule

    def forget_rules(self) -> None:
        """Remove all rules."""
        self._rules = []

    def hold(self, *labels: str) -> None:
        """Hold back these calls, and later data of their connections, until the cut."""
        self._check(*labels)
        self._holding = frozenset(labels)

    # -- faults of all connections ------------------------------------------------------------

    def cut_all(self, *, reset: bool = False) -> None:
        """Cut every connection. New ones are accepted, and no call is blocked on them."""

        async def cut() -> None:
            for link in list(self._links):
                link.cut(reset=reset)
            self._holding = frozenset()

        self._do(cut())

    @contextmanager
    def away(self) -> Iterator[None]:
        """Cut every connection and refuse new ones during the ``with`` block."""
        self.refuse()
        try:
            yield
        finally:
            self.accept()

    def turn_to(self, port: int) -> None:
        """Cut every connection, and connect new ones to another server, as a failover does."""
        self._target = port
        self.cut_all()

    def refuse(self) -> None:
        """Cut every connection and refuse new ones, until `accept`."""
        self._do(self._close_listener())
        self.cut_all()

    def accept(self) -> None:
        """Accept new connections."""
        self._do(self._listen())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Forward nothing during the ``with`` block, and close nothing."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flowing.set)

    # -- the protocol -------------------------------------------------------------------------

    #: Cuts a stream into frames.
    _new_frames: Callable[[], Any] = Frames
    #: Names a request.
    _read: Callable[[bytes], Call] = Call.read

    def _check(self, *labels: str | bytes) -> None:
        """Refuse an unknown name of a script: its rule would never apply."""
        known = {*_script_names().values()}
        for label in labels:
            if isinstance(label, str) and not (label.isupper() or label in known):
                raise ValueError(
                    f"{label!r}: expected a command in capitals or one of {sorted(known)}"
                )

    def _rule_for_reply(self, link: _Link, reply: bytes) -> Rule | None:
        """Return the rule for the call that *reply* answers."""
        if link.subscribed or reply[:1] == b">" or not link.pending:
            return None
        call = link.pending.popleft()
        assert isinstance(call, Call)  # refusals before it are written already
        self._measure(call, reply)
        if reply.startswith(b"-NOSCRIPT"):
            return None  # Redis does not have the script; the call comes again with its source
        return self._rule_for(call, ON_REPLY)

    # -- in the loop --------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._serve, "127.0.0.1", self.port, limit=_CHUNK
            )

    async def _close_listener(self) -> None:
        # This does not wait: the wait would include the connections.
        listener, self._listener = self._listener, None
        if listener is not None:
            # A closing server drops connections that it is accepting, and leaks them.
            for sock in listener.sockets:
                self._loop.remove_reader(sock.fileno())
            await asyncio.sleep(0.001)
            listener.close()

    async def _end(self) -> None:
        await self._close_listener()
        for link in list(self._links):
            link.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0.01)  # the transports close meanwhile

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._forward(reader, writer)
        finally:
            self._serving.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection(
                "127.0.0.1", self._target, limit=_CHUNK
            )
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, their_writer)
        if self._listener is None:  # refused after its accept
            link.cut()
            return
        self._links.add(link)
        both = [
            asyncio.ensure_future(self._pass_requests(link, reader)),
            asyncio.ensure_future(self._pass_replies(link, their_reader)),
        ]
        self._tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        link.cut()
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        self._tasks.difference_update(both)
        self._links.discard(link)

    async def _pass_requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        frames = self._new_frames()
        while data := await reader.read(_CHUNK):
            for raw in frames.feed(data):
                await self._flowing.wait()
                call = self._read(raw)
                self.traffic[call.label] += 1
                self._measure(call, raw)
                if call.label in self._holding:
                    self.blocked_calls.append(call.label)
                    await asyncio.Event().wait()  # waits for the cut
                if rule := self._rule_for(call, (Fault.DROP_REQUEST, Fault.REFUSE)):
                    rule.fire()
                    if rule.fault is Fault.DROP_REQUEST:
                        return
                    link.refuse(rule.answer)
                    continue
                # Such a connection gets messages without a request, and calls no script.
                link.subscribed |= call.label in ("SUBSCRIBE", "PSUBSCRIBE")
                link.pending.append(call)
                link.server.write(raw)
            await link.server.drain()

    async def _pass_replies(self, link: _Link, reader: asyncio.StreamReader) -> None:
        frames = self._new_frames()
        while data := await reader.read(_CHUNK):
            for reply in frames.feed(data):
                await self._flowing.wait()
                if self.latency:
                    await asyncio.sleep(self.latency)
                rule = self._rule_for_reply(link, reply)
                if rule is not None and await self._apply(link, reply, rule):
                    return
                link.client.write(reply)
                link.write_refusals()
            await link.client.drain()

    async def _apply(self, link: _Link, reply: bytes, rule: Rule) -> bool:
        """Apply a rule to a reply; return whether the connection ends."""
        rule.fire()
        if rule.fault is Fault.DELAY:
            await asyncio.sleep(rule.seconds)
            return False
        if rule.fault is Fault.STALL:
            link.client.write(reply[: len(reply) // 2])
            await asyncio.sleep(rule.seconds)
        link.cut(reset=rule.fault is Fault.RESET)
        return True

    def _measure(self, call: Call, frame: bytes) -> None:
        self.largest[call.label] = max(self.largest[call.label], len(frame))

    def _rule_for(self, call: Call, faults: tuple[Fault, ...]) -> Rule | None:
        """Count *call* for every rule; return the first rule that is due."""
        due = [rule for rule in self._rules if rule.fault in faults and rule.count(call)]
        return due[0] if due else None
