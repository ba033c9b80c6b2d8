"""The body of a task message: decoded, and encoded again with other arguments. No I/O."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from celery.utils.saferepr import saferepr
from kombu.compression import compress
from kombu.serialization import dumps, registry

from celery_delayq.errors import ConfigError, RecordError
from celery_delayq.model.payload import READABLE_CONTENT_TYPES, body_of

#: The content type of messages that Celery's serializer ``auth`` has signed.
SIGNED_CONTENT_TYPE = "application/data"

#: Content types that run no code of their sender when they are decoded. The signature of a signed
#: message is checked before.
_HARMLESS_CONTENT_TYPES = READABLE_CONTENT_TYPES | {SIGNED_CONTENT_TYPE}

#: Characters of a value in an error.
_MAX_SHOWN_CHARACTERS = 200


class Body(NamedTuple):
    """The decoded body of a task message.

    Attributes
    ----------
    args, kwargs : Any
        The arguments.
    embedded : dict[str, Any]
        Celery's embedded options: callbacks, errbacks, chain and chord.
    """

    args: Any
    kwargs: Any
    embedded: dict[str, Any]

    @classmethod
    def of(cls, message: Mapping[str, Any], *, unpickle: bool = False) -> Body:
        """Decode the body of a message.

        Parameters
        ----------
        unpickle : bool
            Also decode pickle, and content of serializers that are not kombu's own. That may run
            code of whoever wrote the message.

        Raises
        ------
        RecordError
            The body cannot be decoded here.
        """
        content_type = _content_type(message)
        if content_type not in registry.type_to_name:
            raise RecordError(
                "its arguments are signed, and this process has no key: call "
                "app.setup_security() first, with the settings of your workers"
                if content_type == SIGNED_CONTENT_TYPE
                else f"this process has no serializer for its arguments, which are {content_type!r}"
            )
        if content_type not in _HARMLESS_CONTENT_TYPES and not unpickle:
            raise RecordError(
                f"its arguments are {content_type!r}, and decoding them may run code of whoever "
                "wrote them: give unpickle=True if you trust all who may write to the broker"
            )
        try:
            body = cls(*body_of(message, {content_type}))
            if not isinstance(body.args, (list, tuple)) or not isinstance(body.kwargs, Mapping):
                raise TypeError("no arguments")
        except Exception as exc:  # decoding may raise anything
            raise RecordError(f"its arguments cannot be read: {type(exc).__name__}: {exc}") from exc
        return body

    def written_to(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a message with this body, in the encoding of the message.

        Raises
        ------
        ConfigError
            The serializer of the message cannot encode a value, or cannot sign.
        """
        name = registry.type_to_name[_content_type(message)]
        parts = self.args, dict(self.kwargs), self.embedded
        try:
            content_type, encoding, body = dumps(parts, serializer=name)
        except Exception as exc:
            raise ConfigError(self._cause(name, exc)) from exc
        properties, is_binary = dict(message["properties"]), isinstance(body, bytes)
        if compression := message["headers"].get("compression"):
            body, is_binary = compress(body, compression)[0], True
        if is_binary:
            properties["body_encoding"] = "base64"
        if properties.get("body_encoding") == "base64":
            body = b64encode(body if isinstance(body, bytes) else body.encode()).decode()
        types = {"content-type": content_type, "content-encoding": encoding}
        return {**message, **types, "properties": properties, "body": body}

    def _cause(self, serializer: str, error: Exception) -> str:
        """Return why the body cannot be encoded: the first value that cannot, by its name."""

        def fails(value: Any) -> Exception | None:
            try:
                dumps(value, serializer=serializer)
            except Exception as exc:
                return exc
            return None

        if cause := fails([]):  # such as a missing key
            return f"the serializer {serializer!r} of the message fails: {_shown(cause)}"
        for name, value in self._named():
            if cause := fails(value):
                shown = saferepr(value, _MAX_SHOWN_CHARACTERS)
                return (
                    f"{name}={shown}: the serializer {serializer!r} of the message cannot encode "
                    f"it: {_shown(cause)}"
                )
        return f"the serializer {serializer!r} of the message fails: {_shown(error)}"

    def _named(self) -> Iterator[tuple[str, Any]]:
        yield from ((f"args[{place}]", value) for place, value in enumerate(self.args))
        yield from ((f"kwargs[{name!r}]", value) for name, value in self.kwargs.items())


def _content_type(message: Mapping[str, Any]) -> str:
    return str(message.get("content-type") or SIGNED_CONTENT_TYPE)


def _shown(error: Exception) -> str:
    """Return the text of an error; Celery and kombu wrap errors."""
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}"[:_MAX_SHOWN_CHARACTERS]
