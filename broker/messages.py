"""The frozen messages that cross the wire between client, driver and worker.

A request is one prompt with its sampling parameters; an output is its one result. Field names are those of
OpenAI and vLLM. Every message validates itself when it is built, on either side.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast
from zlib import crc32

import msgspec

from broker.content import joined_text
from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.parameters import TOKEN_LIMIT, SamplingParams, is_text, shown

# How much of a beginning prompts must share before it is worth to keep them together.
PREFIX_CHARACTERS = 256
PREFIX_TOKENS = 64


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"  # the model's end token, or a stop string
    LENGTH = "length"  # max_tokens reached
    ERROR = "error"  # no usable text; see `Output.error`


class OutputSource(StrEnum):
    """Where an output's text comes from."""

    GENERATED = "generated"  # for this request
    SHARED = "shared"  # generated for an identical request of the job
    CACHE = "cache"  # generated for an identical request of another job


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
    SLEEPING = "sleeping"  # its model is out of the GPU's memory; woken by hand
    DRAINING = "draining"  # finishes what it has, takes nothing new
    POISONED = "poisoned"  # fails everything; set aside
    DEAD = "dead"  # its lease is over, or its end was reported; set by others


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a chat: `role` (system, user, assistant, …) and its text."""

    role: str
    content: str


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt, in exactly one of three forms, and how to continue it.

    Raises:
        InvalidRequestError: none or several of `prompt`, `messages`, `input_ids` given, or one that is empty or cannot
            be sent.
        UnsupportedParameterError: `stream` with several texts, or `echo` with messages.
    """

    params: SamplingParams
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    input_ids: tuple[int, ...] | None = None
    return_input_ids: bool = False  # send the prompt's token ids back with the output
    stream: bool = False  # send the text as it comes, too

    def __post_init__(self) -> None:
        """Refuse a request without exactly one non-empty prompt, and types that Python callers may slip in."""
        if not self._is_plain():
            self._require_right()

    def _is_plain(self) -> bool:
        """Whether it is what nearly all are, and right: a text, and nothing else asked for."""
        prompt: Any = self.prompt
        return (
            type(prompt) is str
            and prompt != ""
            and is_text(prompt)
            and self.messages is None
            and self.input_ids is None
            and self.return_input_ids is False
            and self.stream is False
            and type(self.params) is SamplingParams
        )

    def _require_right(self) -> None:
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
        if prompt is not None and not is_text(prompt):
            raise InvalidRequestError(f"prompt must be text that UTF-8 can hold, not {shown(prompt)}")
        turns: Any = self.messages
        if turns is not None and not (isinstance(turns, tuple) and all(_is_turn(turn) for turn in turns)):
            raise InvalidRequestError(_wrong_turns(turns))
        ids: Any = self.input_ids
        if ids is not None and not (isinstance(ids, tuple) and all(_is_token(token) for token in ids)):
            raise InvalidRequestError(f"input_ids must be a tuple of token ids, not {shown(ids)}")
        params: Any = self.params
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"params must be SamplingParams, not {shown(params)}")
        for name in ("return_input_ids", "stream"):
            if not isinstance(wanted := getattr(self, name), bool):
                raise InvalidRequestError(f"{name} must be True or False, not {shown(wanted)}")
        if self.messages is not None and self.params.echo:
            raise UnsupportedParameterError("echo is not offered for messages; it is for prompt and input_ids")
        if self.stream and self.params.n > 1:
            raise UnsupportedParameterError(f"stream is not offered with n above 1, which is {self.params.n}")

    def estimated_prompt_tokens(self) -> int:
        """The prompt's length in tokens where it is known, else its UTF-8 bytes / 4, at least 1; as it is truncated."""
        whole, kept = self._whole_prompt_tokens(), self.params.truncate_prompt_tokens
        return whole if kept is None else min(whole, kept)

    def _whole_prompt_tokens(self) -> int:
        if self.input_ids is not None:
            return len(self.input_ids)
        if self.prompt is not None:
            size = len(self.prompt) if self.prompt.isascii() else len(self.prompt.encode())
        else:
            size = sum(len(message.content.encode()) + 16 for message in self.messages or ())
        return max(1, size // 4)

    def estimated_tokens(self) -> int:
        """What the request may occupy: estimated prompt plus `max_tokens`, in tokens, for each of its `n` texts."""
        return self.params.n * (self.estimated_prompt_tokens() + self.params.max_tokens)

    def prefix_key(self) -> int:
        """A number that prompts with the same beginning (system message, or first characters) share; 0 if it is short.

        Which worker has read that beginning before is all that it decides.
        """
        if self.input_ids is not None:
            start = ",".join(map(str, self.input_ids[:PREFIX_TOKENS])) if len(self.input_ids) >= PREFIX_TOKENS else ""
        elif self.prompt is not None:
            start = self.prompt[:PREFIX_CHARACTERS]
        else:
            start = self.messages[0].content if self.messages else ""
        if self.input_ids is None and len(start) < PREFIX_CHARACTERS:
            return 0
        return crc32(start.encode()) if start else 0


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


class Alternative(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A token that could have been chosen; `text` is its own, with U+FFFD for a part of a character."""

    token_id: int
    logprob: float
    text: str


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How likely a generated token was to the model, before penalties, biases and temperature; the likeliest beside it.

    On the wire it is an array, as there is one for every token: new fields go to the end.
    """

    token_id: int
    logprob: float
    text: str
    alternatives: tuple[Alternative, ...] = ()


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the texts of a request that asked for several (`n`)."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None = None


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one result of one request. `index` is the request's place in its job, from 0.

    `choices` holds the texts of a request that asked for more than one; the first of them is in the output's own fields
    too. The usage is that of all. Where `source` says that the text was not generated for this request, usage and
    worker are those of the run that it comes from.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason
    usage: Usage = Usage()
    error: OutputError | None = None
    input_ids: tuple[int, ...] | None = None
    worker_id: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    choices: tuple[Choice, ...] = ()
    source: OutputSource = OutputSource.GENERATED

    def all_choices(self) -> tuple[Choice, ...]:
        """The texts, one or several."""
        if self.choices:
            return self.choices
        alone = Choice(
            text=self.text, token_ids=self.token_ids, finish_reason=self.finish_reason, logprobs=self.logprobs
        )
        return (alone,)


def failed_output(index: int, code: str, message: str, *, worker_id: str = "") -> Output:
    """The output of a request that failed, with no text."""
    return Output(
        index=index,
        finish_reason=FinishReason.ERROR,
        error=OutputError(code=code, message=message),
        worker_id=worker_id,
    )


def chat_messages(turns: Sequence[Mapping[str, Any] | ChatMessage]) -> tuple[ChatMessage, ...]:
    """Chat turns given as dicts, as messages; content may be a list of text parts.

    Raises:
        InvalidRequestError: a turn has no role or no text; the message names its place.
        UnsupportedParameterError: a turn has a part that is not text, or tool calls.
    """
    given: Any = turns
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidRequestError(f"messages must be a list of turns with role and content, not {shown(given)}")
    plain = [_plain_turn(turn, f"messages[{place}]") for place, turn in enumerate(turns)]
    try:
        return msgspec.convert(plain, tuple[ChatMessage, ...])
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"messages: {error}") from error


def _plain_turn(turn: Mapping[str, Any] | ChatMessage, path: str) -> Mapping[str, Any] | ChatMessage:
    if not isinstance(turn, Mapping):
        return turn
    for name, value in turn.items():
        # What is empty asks for nothing, as in a turn that was copied from a response.
        if name not in ChatMessage.__struct_fields__ and value not in (None, [], ""):
            raise UnsupportedParameterError(f"{path}.{name} is not offered; remove it")
    if isinstance(turn.get("content"), list):
        return {**turn, "content": joined_text(turn["content"], f"{path}.content")}
    return turn


def _is_turn(value: Any) -> bool:
    return isinstance(value, ChatMessage) and is_text(value.role) and is_text(value.content)


def _wrong_turns(turns: Any) -> str:
    """What is wrong with turns, by its place if it is a text that cannot be sent."""
    if isinstance(turns, tuple):
        for place, turn in enumerate(cast("tuple[Any, ...]", turns)):
            for name in ("role", "content") if isinstance(turn, ChatMessage) else ():
                if not is_text(text := getattr(turn, name)):
                    return f"messages[{place}].{name} must be text that UTF-8 can hold, not {shown(text)}"
    return f"messages must be a tuple of ChatMessage, not {shown(turns)}"


def _is_token(value: Any) -> bool:
    return type(value) is int and -TOKEN_LIMIT <= value < TOKEN_LIMIT
