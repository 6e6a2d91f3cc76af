"""A user's own commands: the public methods of a class that `worker_extension_cls` names."""

import importlib
import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import msgspec

from broker.errors import ConfigurationError, InvalidRequestError
from gpu_worker.engine.base import Engine
from gpu_worker.operations import printable


class ExtensionContext:
    """What an extension is constructed with."""

    def __init__(self, worker: str, find_engine: Callable[[], Engine | None]) -> None:
        self.worker = worker  # its name
        self._find_engine = find_engine

    @property
    def engine(self) -> Engine:
        """The engine of now; do not keep it, as another may take its place.

        Raises:
            LookupError: it is being loaded or worked on.
        """
        engine = self._find_engine()
        if engine is None:
            raise LookupError("the engine is being loaded or worked on")
        return engine

    @property
    def model(self) -> Any:
        """The loaded transformers model; None for an engine that has none here."""
        return getattr(self.engine, "model", None)


class Extension:
    """An extension made and ready.

    Raises:
        ConfigurationError: it cannot be imported or made; says why.
    """

    def __init__(self, path: str, context: ExtensionContext) -> None:
        try:
            self._object: Any = _find_class(path)(context)
        except Exception as error:
            raise ConfigurationError(
                f"worker_extension_cls={path!r} cannot be made: {type(error).__name__}: {error}"
            ) from error
        self._path = path

    def bind(self, method: str, arguments: Iterable[str]) -> Callable[[], Any]:
        """A call of a method with `key=value` arguments: JSON where a value is JSON, text otherwise.

        Where the method has types, the values become of them.

        Raises:
            InvalidRequestError: there is no such method, or the arguments do not fit.
        """
        call = getattr(self._object, method, None) if method in self._methods() else None
        if call is None:
            raise InvalidRequestError(f"{self._path} has no method {method!r}; it has {', '.join(self._methods())}")
        values = dict(_parse(argument) for argument in arguments)
        try:
            inspect.signature(call).bind(**values)
            hints = get_type_hints(call)
            typed = {key: _convert(text, hints.get(key, Any)) for key, text in values.items()}
        except (TypeError, msgspec.ValidationError) as error:
            raise InvalidRequestError(f"{method}{inspect.signature(call)}: {error}") from error
        return lambda: _plain(call(**typed))

    def _methods(self) -> list[str]:
        # Looked up statically: a property of the user's must not run for it.
        members = inspect.getmembers_static(type(self._object), _is_method)
        return [name for name, _ in members if not name.startswith("_")]


def _find_class(path: str) -> Callable[[ExtensionContext], Any]:
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ValueError("give it as package.module:Class")
    return getattr(importlib.import_module(module), name)


def _is_method(member: Any) -> bool:
    return callable(member) or isinstance(member, classmethod)


def _parse(argument: str) -> tuple[str, str]:
    key, equals, text = argument.partition("=")
    if not (equals and key.isidentifier()):
        raise InvalidRequestError(f"{argument!r} is not key=value")
    return key, text


def _convert(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return msgspec.convert(value, kind, strict=False)


def _plain(result: Any) -> Any:
    """What JSON in UTF-8 can hold: the result itself (null for numbers that are none), or its text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(result))
    except (TypeError, ValueError, OverflowError):
        return printable(repr(result))
