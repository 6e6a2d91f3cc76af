"""The frozen messages that cross the wire between client, driver and worker.

A request is one prompt with its sampling parameters; an output is its one result. Field names are those of
OpenAI and vLLM. Every message validates itself when it is built, on either side.
"""

from enum import StrEnum
from typing import Any

import msgspec

from broker.chat import ChatMessage, is_turn, wrong_turns
from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.parameters import TOKEN_LIMIT, SamplingParams
from broker.values import is_text, shown


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
        if turns is not None and not (isinstance(turns, tuple) and all(is_turn(turn) for turn in turns)):
            raise InvalidRequestError(wrong_turns(turns))
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


def _is_token(value: Any) -> bool:
    return type(value) is int and -TOKEN_LIMIT <= value < TOKEN_LIMIT
