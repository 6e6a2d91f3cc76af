"""Run-time control: what can be asked of a running worker, and what it answers. The names are Celery's command names.

A command that takes long answers at once with the operation that it has begun; `check_health` tells how that goes.
"""

from typing import Any, ClassVar, TypeAlias

import msgspec

from broker.errors import InvalidRequestError


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command and its arguments. `inspects` is whether it only looks."""

    name: ClassVar[str]
    inspects: ClassVar[bool] = False


class CheckHealth(Command, frozen=True, kw_only=True):
    """How the worker is. With `deep`, also begin to generate a few tokens."""

    name = "check_health"
    inspects = True
    deep: bool = False


class MemoryUse(Command, frozen=True, kw_only=True):
    """What weights and KV cache occupy."""

    name = "memory"
    inspects = True


class SetLimits(Command, frozen=True, kw_only=True):
    """Change how many requests and tokens run together; 0 leaves one as it is."""

    name = "set_limits"
    slots: int = 0
    kv_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no size, or says nothing."""
        if min(self.slots, self.kv_tokens) < 0 or self.slots == self.kv_tokens == 0:
            raise InvalidRequestError("give slots or kv_tokens, above 0")


class Sleep(Command, frozen=True, kw_only=True):
    """Give work back and free the GPU's memory; `finish` ends what is in hand first."""

    name = "sleep"
    finish: bool = False


class Wake(Command, frozen=True, kw_only=True):
    """Take work again."""

    name = "wake"


class Reload(Command, frozen=True, kw_only=True):
    """Load the model anew; `finish` ends what is in hand first."""

    name = "reload"
    finish: bool = False


class SwitchModel(Command, frozen=True, kw_only=True):
    """Serve another model; `finish` ends what is in hand first."""

    name = "switch_model"
    model: str
    served_model_name: str = ""  # what requests call it; the model's own name if empty
    finish: bool = False

    def __post_init__(self) -> None:
        """Refuse no model."""
        if not self.model:
            raise InvalidRequestError("model must not be empty")


class CallExtension(Command, frozen=True, kw_only=True):
    """Call a method of the worker's extension; arguments are key=value."""

    name = "call_extension"
    method: str
    arguments: tuple[str, ...] = ()


COMMANDS: dict[str, type[Command]] = {
    kind.name: kind for kind in (CheckHealth, MemoryUse, SetLimits, Sleep, Wake, Reload, SwitchModel, CallExtension)
}


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine occupies, in MiB; None is for what it does not have or cannot know."""

    device: str  # where the weights are now
    rss_mib: float  # of the worker's process
    weights_mib: float | None = None
    kv_cache_mib: float | None = None
    allocated_mib: float | None = None  # GPU memory in use by the process's tensors
    reserved_mib: float | None = None  # GPU memory that the process keeps for tensors
    free_mib: float | None = None  # GPU memory that nobody uses


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Something long that a worker does, or has done: the present one or the last."""

    number: int  # counts from 1 in each life of the worker
    name: str  # the command's
    stage: str = ""
    seconds: float = 0.0
    ended: bool = False
    error: str = ""
    result: Any = None  # of an extension's method


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is."""

    worker: str
    session: str
    state: str
    reason: str = ""
    model: str = ""
    uptime_s: float = 0.0
    batches: int = 0  # in hand
    running: int = 0
    waiting: int = 0
    slots: int = 0
    kv_tokens: int = 0
    context_tokens: int = 0
    steps: int = 0
    generated_tokens: int = 0
    last_step_s: float | None = None  # ago; None before the first
    engine_answered_s: float | None = None  # ago; it answers many times a second. None while there is no engine
    operation: Operation | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a command that takes long: which operation of which life it is."""

    session: str
    operation: Operation


ANSWERS: dict[str, Any] = {CheckHealth.name: Health, MemoryUse.name: Memory}  # all others: Begun


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a worker does not do what it was asked."""

    error: str
    code: str = ""


Answer: TypeAlias = Health | Memory | Begun | Operation | Refusal  # what a worker says, or its operation's end


def parse_command(name: str, arguments: dict[str, Any]) -> Command:
    """The command of this name.

    Raises:
        InvalidRequestError: there is none, or an argument is wrong.
    """
    kind = COMMANDS.get(name)
    if kind is None:
        raise InvalidRequestError(f"there is no command {name!r}; there are {', '.join(COMMANDS)}")
    try:
        return msgspec.convert(arguments, kind, strict=False)
    except msgspec.ValidationError as error:
        # msgspec keeps our own error as the cause, and adds the place.
        raise InvalidRequestError(f"{name}: {error.__cause__ or error}") from error
