"""A task that POSTs signed JSON to a URL, if its host is on an allow list.

>>> from celery import Celery
>>> from celery_delayq import DelayQ
>>> from celery_delayq.webhook import Webhook, post
>>> app = Celery("shop", broker="delayq+redis://localhost:6379/0")
>>> webhook = Webhook(allow=["hooks.example.com"], secret="at least 24 characters of it")
>>> delayq = DelayQ(app, webhook=webhook)
>>> url, order = "https://hooks.example.com/orders", {"id": 7}
>>> post.apply_async((url, order), countdown=60)  # doctest: +ELLIPSIS
<AsyncResult: ...>

Workers need httpcore: ``pip install "celery-delayq[webhook]"``. See ``docs/webhook.md``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any
from uuid import uuid4

from celery import Task, shared_task
from celery._state import _get_active_apps, connect_on_app_finalize
from celery.utils.saferepr import saferepr

from celery_delayq.errors import (
    ConfigError,
    DeliveryFailed,
    DeliveryRefused,
    InvalidSignature,
    InvalidWebhook,
)
from celery_delayq.integration.retries import attempts_of
from celery_delayq.model.retries.policy import STEPPED
from celery_delayq.utils.credentials import hide
from celery_delayq.utils.numbers import is_finite, is_integer
from celery_delayq.webhook.addresses import (
    Host,
    Network,
    WebhookUrl,
    address_of,
    is_allowed,
    network,
    parse,
    resolve,
)
from celery_delayq.webhook.request import HEADER_TEXT, body_of, check_headers, headers_of, judge
from celery_delayq.webhook.signing import key_of, sign, verify

__all__ = [
    "DeliveryFailed",
    "DeliveryRefused",
    "InvalidSignature",
    "InvalidWebhook",
    "Webhook",
    "check_url",
    "post",
    "sign",
    "verify",
]

#: The name of the task.
TASK_NAME = "celery_delayq.webhook"

#: The import path, a second name of the task.
IMPORT_PATH = f"{TASK_NAME}.post"


@dataclass(frozen=True)
class Webhook:
    """Settings of the task ``celery_delayq.webhook``: allowed hosts, secret and limits.

    Raises
    ------
    ConfigError
        A value has the wrong type or lies outside its range.
    """

    allow: Sequence[str]
    """Hosts: names, addresses, or ``*.example.org`` for all names below one. The port is the
    scheme's, or given: ``:8443``, or ``:*`` for any."""

    secret: str | bytes | None = field(default=None, repr=False)
    """Key of the signatures; ``whsec_…`` is base64. None: requests are not signed."""

    allow_networks: Sequence[str] = ()
    """Networks that are allowed besides public addresses, such as ``10.0.0.0/8``."""

    allow_http: bool = False
    """Whether ``http://`` is allowed besides ``https://``."""

    connect_timeout: float = 5.0
    """Seconds to connect to one address."""

    timeout: float = 15.0
    """Seconds for one attempt, from the look-up of the host to the end of the answer."""

    ca_file: str | None = None
    """File on the workers with trusted authorities (PEM); None: those of ``certifi``."""

    user_agent: str = "celery-delayq"
    """The header ``User-Agent``."""

    max_response: int = 512
    """Most bytes of a failed request's answer that the error shows."""

    max_retry_after: float = 3600.0
    """Longest wait that a ``Retry-After`` can ask for, in seconds."""

    hosts: tuple[Host, ...] = field(init=False, repr=False, compare=False)
    networks: tuple[Network, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("allow", "allow_networks"):
            given = getattr(self, name)
            if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
                raise ConfigError(f"Webhook({name}={given!r}): expected a list of texts")
            object.__setattr__(self, name, tuple(given))
        if not self.allow:
            raise ConfigError(
                "Webhook(allow=[]): expected the hosts that may be asked, such as "
                "['hooks.example.com', '*.example.org:8443']"
            )
        object.__setattr__(self, "hosts", tuple(Host.of(entry) for entry in self.allow))
        object.__setattr__(self, "networks", tuple(network(text) for text in self.allow_networks))
        for entry, host in zip(self.allow, self.hosts, strict=True):
            address = address_of(host.name)
            if address is not None and not is_allowed(address, self.networks):
                raise ConfigError(
                    f"Webhook(allow=[{entry!r}]): that is no public address; if it is meant, add "
                    f"allow_networks=['{address}']"
                )
        if self.secret is not None:
            key_of(self.secret)
        if not isinstance(self.allow_http, bool):
            raise ConfigError(f"Webhook(allow_http={self.allow_http!r}): expected True or False")
        self._check_number("connect_timeout", 0.001, 3600)
        self._check_number("timeout", 0.001, 3600)
        self._check_number("max_retry_after", 0, 2_592_000)
        self._check_number("max_response", 0, 65_536, whole=True)
        if self.ca_file is not None and not (isinstance(self.ca_file, str) and self.ca_file):
            raise ConfigError(f"Webhook(ca_file={self.ca_file!r}): expected the path of a file")
        agent = self.user_agent
        if not isinstance(agent, str) or not agent or not HEADER_TEXT.fullmatch(agent):
            raise ConfigError(f"Webhook(user_agent={agent!r}): expected printable ASCII")

    def _check_number(self, name: str, low: float, high: float, *, whole: bool = False) -> None:
        value = getattr(self, name)
        if not (is_integer if whole else is_finite)(value, low, high):
            raise ConfigError(
                f"Webhook({name}={value!r}): expected {'bytes' if whole else 'seconds'} "
                f"from {low:g} to {high:g}"
            )


def settings_of(app: Any) -> Webhook | None:
    """Return the settings of an app, or None if this process has none.

    Raises
    ------
    ConfigError
        ``DelayQ(webhook=…)`` got another type.
    """
    settings = getattr(getattr(app, "_delayq", None), "webhook", None)
    if settings is not None and not isinstance(settings, Webhook):
        raise ConfigError(
            f"DelayQ(webhook=…) got something of type {type(settings).__name__}: expected "
            "Webhook(allow=['hooks.example.com'], secret=…)"
        )
    return settings


def check_url(url: Any, settings: Webhook) -> WebhookUrl:
    """Return the parts of a URL that is allowed; the host's name is not looked up.

    Raises
    ------
    InvalidWebhook
        The URL has another scheme, a user, or a host that the allow list lacks.
    """
    target = parse(url)
    if target.scheme == "http" and not settings.allow_http:
        raise InvalidWebhook(
            f"webhook {target.shown}: expected https; Webhook(allow_http=True) allows http"
        )
    if not any(host.covers(target) for host in settings.hosts):
        raise InvalidWebhook(
            f"webhook {target.shown}: {target.host} with port {target.port} is not allowed; "
            f"Webhook(allow=…) has {', '.join(settings.allow)}"
        )
    return target


def deliver(settings: Webhook, url: Any, payload: Any, headers: Any, id: str) -> int:
    """POST once, and return the status: 200 to 299.

    Parameters
    ----------
    id : str
        Id of the delivery, the same in each attempt.

    Raises
    ------
    DeliveryFailed
        There was no answer, or its status asks for another attempt.
    DeliveryRefused
        The status says that another attempt is useless.
    InvalidWebhook
        URL, payload or headers must not be sent.
    ConfigError
        httpcore or *ca_file* is missing.
    """
    deadline = time.monotonic() + settings.timeout
    target, own, body = check_url(url, settings), check_headers(headers), body_of(payload)
    try:
        from celery_delayq.webhook import http
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f'{TASK_NAME} needs {exc.name}: pip install "celery-delayq[webhook]" on the workers'
        ) from exc
    addresses = resolve(target, settings.networks, deadline)
    try:
        answer = http.send(
            target,
            addresses,
            {**own, **headers_of(id, body, settings.secret, settings.user_agent)},
            body,
            connect_timeout=settings.connect_timeout,
            deadline=deadline,
            max_response=settings.max_response,
            ca_file=settings.ca_file,
        )
    except http.NO_ANSWER_ERRORS as exc:
        is_late = time.monotonic() >= deadline
        why = f"no answer within {settings.timeout:g} s" if is_late else "no answer"
        raise DeliveryFailed(f"POST {target.shown}: {why}: {type(exc).__name__} {exc}") from exc
    return judge(answer, target, settings.max_retry_after)


class WebhookTask(Task):
    """Checks URL, headers and payload at the call, and hides secrets in ``argsrepr``."""

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Do what ``Task.apply_async`` does.

        Raises
        ------
        InvalidWebhook
            URL, headers or payload must not be sent. If this process has no settings, the worker
            checks the allow list.
        """
        try:
            given = _SIGNATURE.bind(None, *(args or ()), **(kwargs or {})).arguments
        except TypeError:
            given = {}  # Task.apply_async raises a clearer error
        # Tasks that Celery sends itself (links, chains, retries) have a parent and no caller who
        # could get the error. The worker refuses them, and they become dead letters.
        if "url" in given and "parent_id" not in options:
            settings = settings_of(self.app)
            if settings is None:
                parse(given["url"])
            else:
                check_url(given["url"], settings)
            check_headers(given.get("headers"))
            body_of(given.get("payload"))
        shown_args, shown_kwargs = _shown(args or (), kwargs or {})
        if shown_args != tuple(args or ()):
            options.setdefault("argsrepr", saferepr(shown_args, 1024))
        if shown_kwargs != dict(kwargs or {}):
            options.setdefault("kwargsrepr", saferepr(shown_kwargs, 1024))
        return super().apply_async(args, kwargs, *rest, **options)


def _shown(
    args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments for logs, events and lists, without the query and values of headers."""
    shown_args, shown_kwargs = tuple(args), dict(kwargs)
    if shown_args:
        shown_args = (_shown_url(shown_args[0]), *shown_args[1:])
    if "url" in shown_kwargs:
        shown_kwargs["url"] = _shown_url(shown_kwargs["url"])
    if isinstance(shown_kwargs.get("headers"), Mapping):
        shown_kwargs["headers"] = dict.fromkeys(shown_kwargs["headers"], "…")
    return shown_args, shown_kwargs


def _shown_url(url: Any) -> Any:
    if not isinstance(url, str):
        return url
    try:
        target = parse(url)
    except InvalidWebhook:
        return hide(url)
    return target.shown + ("?…" if "?" in target.request else "")


def _post(self: Any, url: str, payload: Any = None, *, headers: Any = None) -> int:
    """POST *payload* as JSON to *url*, and return the status.

    Parameters
    ----------
    url : str
        Its host must be on the allow list.
    payload : Any
        Anything that JSON can hold.
    headers : Mapping[str, str] | None
        More headers. Redis stores them unencrypted like all arguments: give no passwords.
    """
    settings = settings_of(self.app)
    if settings is None:
        raise ConfigError(
            f"{TASK_NAME} has no settings in the app {self.app.main!r}: give it "
            "DelayQ(app, webhook=Webhook(allow=['hooks.example.com'], secret=…))"
        )
    try:
        return deliver(settings, url, payload, headers, self.request.id or uuid4().hex)
    except DeliveryFailed as exc:
        attempts = attempts_of(self)
        if attempts is None or attempts.policy_of(self.request) is None or not exc.retry_after:
            raise  # the retry policy decides whether and when to retry
        raise self.retry(exc=exc, countdown=exc.retry_after) from exc


_SIGNATURE = signature(_post)

# Celery names the task's class after its function.
_post.__name__ = _post.__qualname__ = "post"

_OPTIONS: Mapping[str, Any] = {
    "name": TASK_NAME,
    "bind": True,
    "base": WebhookTask,
    "retry_intervals": STEPPED,
    "retry_for": (DeliveryFailed,),
    "dont_retry_for": (DeliveryRefused, InvalidWebhook, ConfigError),
}


def _register_path(app: Any) -> None:
    """Register the task by its import path, too: producers may send the task by this name."""
    task = app._task_from_fun(_post, **_OPTIONS)
    app._tasks[IMPORT_PATH] = task
    # Celery builds a tracer for each name of a task, and keeps the tracer of the last name.
    app._tasks[TASK_NAME] = app._tasks.pop(TASK_NAME)


#: The task; arguments are those of :func:`_post` without *self*.
post: Any = shared_task(_post, **_OPTIONS)
connect_on_app_finalize(_register_path)
for _app in _get_active_apps():
    if _app.finalized:
        _register_path(_app)
