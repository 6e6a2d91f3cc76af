"""The frozen messages that cross the wire between client, driver and worker.

A request is one prompt with its sampling parameters; an output is its one result. Field names are those of
OpenAI and vLLM. Every message validates itself when it is built, on either side.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from broker.errors import InvalidRequestError

MAX_TOKENS_LIMIT = 1 << 20
SEED_LIMIT = 1 << 63
TOKEN_LIMIT = 1 << 31
MAX_STOP_STRINGS = 16


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"  # the model's end token, or a stop string
    LENGTH = "length"  # max_tokens reached
    ERROR = "error"  # no usable text; see `Output.error`


class JobState(StrEnum):
    """What the ledger says of a whole job."""

    OPEN = "open"  # requests may still be added
    RUNNING = "running"  # sealed, and not every request has its output
    DONE = "done"  # every request has its output


class WorkerState(StrEnum):
    """What a worker says of itself in its heartbeat."""

    STARTING = "starting"  # the name is reserved, the process is coming up
    LOADING = "loading"  # the model is being loaded and warmed up
    READY = "ready"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    POISONED = "poisoned"  # fails everything; set aside
    DEAD = "dead"  # its lease is over, or its end was reported; set by others


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the tokens of one request.

    Fields are named as in OpenAI's and vLLM's APIs. `temperature` 0 is greedy; `top_k` 0 means the whole vocabulary;
    `stop` strings end the text and are not part of it; a `seed` makes sampling repeatable whatever else is in
    the batch. `max_tokens` counts generated tokens only.

    Raises:
        InvalidRequestError: a value is outside its range; the message names the field and the range.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse values outside their range, and types that Python callers may slip in."""
        _require_integer("max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT)
        _require_number("temperature", self.temperature, 0.0, 100.0)
        _require_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p <= 0:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        _require_integer("top_k", self.top_k, 0, MAX_TOKENS_LIMIT)
        if self.seed is not None:
            _require_integer("seed", self.seed, -SEED_LIMIT, SEED_LIMIT - 1)
        self._normalise_stop()

    def _normalise_stop(self) -> None:
        stop: Any = self.stop
        if isinstance(stop, str):
            stop = (stop,)
        if not isinstance(stop, (tuple, list)) or not all(_is_text(item) for item in stop):
            raise InvalidRequestError(f"stop must be a string or a list of strings, not {_shown(self.stop)}")
        if "" in stop:
            raise InvalidRequestError("stop must not hold an empty string")
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"stop must hold at most {MAX_STOP_STRINGS} strings, not {len(stop)}")
        msgspec.structs.force_setattr(self, "stop", tuple(stop))


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a chat: `role` (system, user, assistant, …) and its text."""

    role: str
    content: str


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt, in exactly one of three forms, and how to continue it.

    Raises:
        InvalidRequestError: none or several of `prompt`, `messages`, `input_ids` given, or one that is empty or cannot
            be sent.
    """

    params: SamplingParams
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    input_ids: tuple[int, ...] | None = None
    return_input_ids: bool = False  # send the prompt's token ids back with the output

    def __post_init__(self) -> None:
        """Refuse a request without exactly one non-empty prompt, and types that Python callers may slip in."""
        given = [name for name in ("prompt", "messages", "input_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                f"give exactly one of prompt, messages, input_ids; got {', '.join(given) or 'none'}"
            )
        if not getattr(self, given[0]):
            raise InvalidRequestError(f"{given[0]} must not be empty")
        self._require_sendable()

    def _require_sendable(self) -> None:
        """Refuse what no worker could read: it would come back from the ledger as no request at all."""
        prompt: Any = self.prompt
        if prompt is not None and not _is_text(prompt):
            raise InvalidRequestError(f"prompt must be text that UTF-8 can hold, not {_shown(prompt)}")
        turns: Any = self.messages
        if turns is not None and not (isinstance(turns, tuple) and all(_is_turn(turn) for turn in turns)):
            raise InvalidRequestError(f"messages must be a tuple of ChatMessage, not {_shown(turns)}")
        ids: Any = self.input_ids
        if ids is not None and not (isinstance(ids, tuple) and all(_is_token(token) for token in ids)):
            raise InvalidRequestError(f"input_ids must be a tuple of token ids, not {_shown(ids)}")
        params: Any = self.params
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"params must be SamplingParams, not {_shown(params)}")
        wanted: Any = self.return_input_ids
        if not isinstance(wanted, bool):
            raise InvalidRequestError(f"return_input_ids must be True or False, not {_shown(wanted)}")

    def estimated_prompt_tokens(self) -> int:
        """The prompt's length in tokens where it is known, else its UTF-8 bytes / 4, at least 1."""
        if self.input_ids is not None:
            return len(self.input_ids)
        if self.prompt is not None:
            size = len(self.prompt.encode())
        else:
            size = sum(len(message.content.encode()) + 16 for message in self.messages or ())
        return max(1, size // 4)

    def estimated_tokens(self) -> int:
        """What the request may occupy: estimated prompt plus `max_tokens`, in tokens."""
        return self.estimated_prompt_tokens() + self.params.max_tokens


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens read and written for one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


class OutputError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request has no text: a stable `code` and a sentence for people."""

    code: str
    message: str


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one result of one request. `index` is the request's place in its job, from 0."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason
    usage: Usage = Usage()
    error: OutputError | None = None
    input_ids: tuple[int, ...] | None = None
    worker_id: str = ""


def failed_output(index: int, code: str, message: str, *, worker_id: str = "") -> Output:
    """The output of a request that failed, with no text."""
    return Output(
        index=index,
        finish_reason=FinishReason.ERROR,
        error=OutputError(code=code, message=message),
        worker_id=worker_id,
    )


def chat_messages(turns: Sequence[Mapping[str, Any] | ChatMessage]) -> tuple[ChatMessage, ...]:
    """Chat turns given as dicts, as messages.

    Raises:
        InvalidRequestError: a turn has no role or no text; the message names its place.
    """
    try:
        return msgspec.convert(list(turns), tuple[ChatMessage, ...])
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"messages: {error}") from error


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def _is_turn(value: Any) -> bool:
    return isinstance(value, ChatMessage) and _is_text(value.role) and _is_text(value.content)


def _is_token(value: Any) -> bool:
    return type(value) is int and -TOKEN_LIMIT <= value < TOKEN_LIMIT


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _require_integer(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


def _require_number(name: str, value: Any, low: float, high: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A range check refuses NaN and infinity too.
    if not number or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
