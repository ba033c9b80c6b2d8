"""Connect Spark tasks to the queue, without secrets in plans, logs and web pages of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from celery import Celery
from celery.app.utils import find_app

from celery_delayq.app import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.model.names import NO_RENAMES, Renames, renames_of
from celery_delayq.utils.credentials import has_password

#: Environment variables with the broker URL, tried in this order without the option url.
URL_VARIABLES = ("DELAYQ_URL", "CELERY_BROKER_URL")

#: Environment variable with the password. Spark hides ``spark.executorEnv.*PASSWORD*``.
PASSWORD_VARIABLE = "DELAYQ_PASSWORD"

#: The options of :class:`Access`.
ACCESS_OPTIONS = ("url", "password", "app", "keyprefix")

_URL_ADVICE = (
    "give the URL without its password, and the password by the environment variable "
    f"{PASSWORD_VARIABLE} on the driver and the executors (spark.executorEnv.{PASSWORD_VARIABLE}), "
    f"or the whole URL by {URL_VARIABLES[0]}, or by the name of a variable: url='env:MY_BROKER_URL'"
)


@dataclass(frozen=True)
class Access:
    """The address of the queue. Executors get a copy, and each makes its own connection.

    Attributes
    ----------
    url : str | None
        The broker's URL, or ``env:NAME``. None: the URL of the app or of the environment.
    password : str | None
        The password as an option; Spark hides options of that name.
    app : str | None
        The Celery app as for ``celery -A``. Executors must be able to import the app. None: an
        app that has only the URL.
    keyprefix : str | None
        The ``global_keyprefix`` of the apps, if *app* is not given.
    """

    url: str | None = None
    password: str | None = field(default=None, repr=False)
    app: str | None = None
    keyprefix: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Access:
        """Return the access that the options of a data source describe.

        Raises
        ------
        ConfigError
            The URL has a password, which plans and logs would show.
        """
        url = options.get("url")
        if url is not None and has_password(url):
            raise ConfigError(
                f"the option url has a password, which Spark would show; {_URL_ADVICE}"
            )
        return cls(*(options.get(name) for name in ACCESS_OPTIONS))

    def full_url(self) -> str:
        """Return the broker's URL with its password."""
        url = self.url
        if url is None:
            url = next((os.environ[name] for name in URL_VARIABLES if name in os.environ), None)
            if url is None:
                raise ConfigError(
                    "where is the queue? Give the option url, or set "
                    f"{' or '.join(URL_VARIABLES)} on the driver and the executors "
                    f"(spark.executorEnv.{URL_VARIABLES[0]}), or name an "
                    "app: app='myproject.celery:app'"
                )
        elif url.startswith("env:"):
            name = url.removeprefix("env:")
            if name not in os.environ:
                raise ConfigError(
                    f"the option url is {url!r}, and there is no environment variable {name} here; "
                    f"set it on the driver and the executors (spark.executorEnv.{name})"
                )
            url = os.environ[name]
        if not url.startswith("delayq"):
            url = f"delayq+{url}"
        if self.app is None and url.startswith("delayq+sentinel"):
            raise ConfigError(
                "the master name of Sentinels is in broker_transport_options: name the app that "
                "sets it by the option app"
            )
        password = self.password or os.environ.get(PASSWORD_VARIABLE)
        return url if password is None or has_password(url) else _with_password(url, password)


@contextmanager
def open_client(access: Access) -> Iterator[DelayQ]:
    """Yield a client of the queue; close it after the block.

    Inside the block, the broker of the app is that of the options.

    Raises
    ------
    ConfigError
        No URL was given, or the app cannot be imported here.
    """
    url: str | None
    if access.app is None:
        app = Celery("celery_delayq.spark", set_as_current=False)
        if access.keyprefix is not None:
            app.conf.broker_transport_options = {"global_keyprefix": access.keyprefix}
        url = access.full_url()
    else:
        app = _import_app(access.app)
        url = None if access.url is None else access.full_url()
    # Not broker_url: CELERY_BROKER_URL in the environment would take precedence.
    names = () if url is None else ("broker_read_url", "broker_write_url")
    before = {name: app.conf.get(name) for name in names}
    app.conf.update(dict.fromkeys(names, url))
    try:
        DelayQ.of(app)  # installs our changes to messages of the app
        # A new client: the app's client may be connected to another broker.
        delayq = DelayQ()
        delayq.session.bind(app)
        with closing(delayq):
            yield delayq
    finally:
        app.conf.update(before)
        if access.app is None:
            app.close()


def renames_of_access(access: Access) -> Renames:
    """Return the former names of the tasks of the app; without an app there are none.

    Raises
    ------
    ConfigError
        The app cannot be imported here.
    """
    return NO_RENAMES if access.app is None else renames_of(_import_app(access.app))


def _import_app(name: str) -> Celery:
    try:
        app: Any = find_app(name)
    except (ImportError, AttributeError) as exc:
        raise ConfigError(
            f"the option app={name!r} cannot be imported here: {exc}; ship its code to the "
            "executors, as by spark-submit --py-files"
        ) from exc
    return app


def _with_password(url: str, password: str) -> str:
    """Return one URL, or several URLs of Sentinels, with the password in each URL."""
    parts = []
    for part in url.split(";"):
        scheme, _, rest = part.partition("://")
        host, slash, path = rest.partition("/")
        user, _, host = host.rpartition("@")
        parts.append(f"{scheme}://{user}:{quote(password, safe='')}@{host}{slash}{path}")
    return ";".join(parts)
