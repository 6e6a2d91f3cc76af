"""The commands as Celery knows them: in a worker, where they run, and for the `celery` command line, where they do not.

`celery -A broker.app inspect check_health` finds name, kind and arguments here.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from celery.worker.control import Panel

from broker.commands import COMMANDS, Command

Answer = Callable[..., dict[str, Any]]


def register(answer: Answer | None = None) -> None:
    """Make the commands known to this process. `answer` does them, by name and keyword arguments, in a worker."""
    for name, kind in COMMANDS.items():
        fields = [field for field in msgspec.structs.fields(kind) if field.name != "arguments"]
        Panel.register(
            name=name,
            type="inspect" if kind.inspects else "control",
            help=(kind.__doc__ or "").strip(),
            args=[(field.name, str) for field in fields],  # the worker reads them, and says what is wrong with one
            signature=" ".join(_shown(field) for field in msgspec.structs.fields(kind)),
            variadic="arguments" if "arguments" in kind.__struct_fields__ else None,
        )(_handler(kind, answer))


def _handler(kind: type[Command], answer: Answer | None) -> Callable[..., dict[str, Any]]:
    def handle(_state: Any, **arguments: Any) -> dict[str, Any]:
        if answer is None:
            raise NotImplementedError("commands are done by workers")
        return answer(kind.name, **arguments)

    return handle


def _shown(field: msgspec.structs.FieldInfo) -> str:
    if field.name == "arguments":
        return "[key=value ...]"
    return field.name if field.required else f"[{field.name}={field.default!r}]"
