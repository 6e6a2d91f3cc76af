"""How to choose the tokens of one request: `SamplingParams`, each field checked against its range.

Names and ranges are those of OpenAI and vLLM; `docs/parameters.md` has the table. Fields at their default are not sent,
so that a new one changes no message that does not use it.
"""

from collections.abc import Mapping
from numbers import Integral
from typing import Any, cast

import msgspec

from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.values import is_text, require_flag, require_number, require_whole_number, shown

MAX_TOKENS_LIMIT = 1 << 20
SEED_LIMIT = 1 << 63
TOKEN_LIMIT = 1 << 31
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 256
MAX_BIASES = 1024
MAX_CHOICES = 128
MAX_ALTERNATIVES = 20

# Name -> least and greatest value. None is right where it is the default, and so is not checked.
_WHOLE_NUMBERS = {
    "max_tokens": (1, MAX_TOKENS_LIMIT),
    "min_tokens": (0, MAX_TOKENS_LIMIT),
    "top_k": (0, MAX_TOKENS_LIMIT),
    "n": (1, MAX_CHOICES),
    "seed": (-SEED_LIMIT, SEED_LIMIT - 1),
    "logprobs": (0, MAX_ALTERNATIVES),
    "truncate_prompt_tokens": (1, MAX_TOKENS_LIMIT),
}
_NUMBERS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_ABOVE_ZERO = ("top_p", "repetition_penalty")
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "echo")
_BIAS = (-100.0, 100.0)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the tokens of one request.

    Fields are named as in OpenAI's and vLLM's APIs. `temperature` 0 is greedy; `top_k` 0 means the whole vocabulary;
    `stop` strings end the text and are not part of it; a `seed` makes sampling repeatable whatever else is in
    the batch. `max_tokens` counts generated tokens only.

    Raises:
        InvalidRequestError: a value is outside its range; the message names the field and the range.
        UnsupportedParameterError: two fields that are not offered together.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    min_tokens: int = 0  # no end token and no stop string before so many
    stop_token_ids: tuple[int, ...] = ()  # end the text as the model's own end tokens do
    ignore_eos: bool = False  # the model's own end tokens do not
    include_stop_str_in_output: bool = False  # keep the stop string, or the stop token's text
    repetition_penalty: float | None = None  # None: as the model's generation config has it
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id and bias; may be given as a mapping
    logprobs: int | None = None  # log probability of each token, and of so many likely ones
    echo: bool = False  # the prompt in front of the text
    n: int = 1  # texts for this prompt
    truncate_prompt_tokens: int | None = None  # keep only so many tokens, from the prompt's end

    def __post_init__(self) -> None:
        """Refuse values outside their range, and types that Python callers may slip in."""
        for name, default in _DEFAULTS:
            # Most fields of most requests are at their default, which is known to be right.
            if (value := getattr(self, name)) is not default:
                self._check(name, value)
        self._refuse_contradictions()

    def _check(self, name: str, value: Any) -> None:
        if name in _WHOLE_NUMBERS:
            require_whole_number(name, value, *_WHOLE_NUMBERS[name])
            self._make_plain(name, value)
        elif name in _NUMBERS:
            require_number(name, value, *_NUMBERS[name], above=name in _ABOVE_ZERO)
            self._make_plain(name, value)
        elif name in _FLAGS:
            require_flag(name, value)
        else:
            self._normalise(name, _LISTS[name](value))

    def _make_plain(self, name: str, value: Any) -> None:
        if type(value) not in (int, float):
            self._normalise(name, int(value) if isinstance(value, Integral) else float(value))

    def _normalise(self, name: str, value: Any) -> None:
        msgspec.structs.force_setattr(self, name, value)

    def _refuse_contradictions(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens, which is {self.max_tokens}, not {self.min_tokens}"
            )
        if self.echo and self.logprobs is not None:
            raise UnsupportedParameterError(
                "echo with logprobs is not offered: there are no log probabilities of the prompt"
            )


_DEFAULTS = tuple(zip(SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True))


def _stop_strings(stop: Any) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, (tuple, list)) or not all(is_text(item) for item in cast("list[Any]", strings)):
        raise InvalidRequestError(f"stop must be a string or a list of strings, not {shown(stop)}")
    strings = cast("list[str]", strings)
    if "" in strings:
        raise InvalidRequestError("stop must not hold an empty string")
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"stop must hold at most {MAX_STOP_STRINGS} strings, not {len(strings)}")
    return tuple(strings)


def _stop_tokens(ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, (tuple, list)) or not all(_is_token_id(item) for item in cast("list[Any]", ids)):
        raise InvalidRequestError(f"stop_token_ids must be a list of token ids, not {shown(ids)}")
    ids = cast("list[int]", ids)
    if len(ids) > MAX_STOP_TOKENS:
        raise InvalidRequestError(f"stop_token_ids must hold at most {MAX_STOP_TOKENS} ids, not {len(ids)}")
    return tuple(ids)


def _biases(given: Any) -> tuple[tuple[int, float], ...]:
    """Pairs sorted by token id, from a mapping (in JSON its keys are text) or from such pairs."""
    if isinstance(given, Mapping):
        given = tuple(cast("Mapping[Any, Any]", given).items())
    if not isinstance(given, (tuple, list)) or not all(_is_pair(item) for item in cast("list[Any]", given)):
        raise InvalidRequestError(f"logit_bias must be a mapping of token ids to numbers, not {shown(given)}")
    pairs = {_bias_token(token): bias for token, bias in cast("list[tuple[Any, Any]]", given)}
    if len(pairs) > MAX_BIASES:
        raise InvalidRequestError(f"logit_bias must hold at most {MAX_BIASES} tokens, not {len(pairs)}")
    for token, bias in pairs.items():
        require_number(f"logit_bias of token {token}", bias, *_BIAS)
    return tuple(sorted((token, float(bias)) for token, bias in pairs.items()))


def _bias_token(token: Any) -> int:
    is_number = isinstance(token, str) and token.isascii() and token.isdigit() and len(token) <= 10
    token_id: Any = int(token) if is_number else token
    if not _is_token_id(token_id):
        raise InvalidRequestError(f"logit_bias must have token ids as keys, not {shown(token)}")
    return token_id


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(cast("list[Any]", value)) == 2


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < TOKEN_LIMIT


_LISTS = {"stop": _stop_strings, "stop_token_ids": _stop_tokens, "logit_bias": _biases}
