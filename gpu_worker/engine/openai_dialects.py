"""What kinds of OpenAI-compatible servers there are, and what each may be asked for.

Servers differ in what they know beyond OpenAI's own fields, and some drop in silence what they do not know, or mean
something else by it. So a kind offers only what its sources show to be meant as Stoker means it, in all versions that
are about; docs/engines.md says where that was read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from broker.parameters import SamplingParams

_ALWAYS = ("max_tokens", "temperature", "top_p", "stop", "n", "echo")  # offered by every server, or done on this side
_STANDARD = ("seed", "presence_penalty", "frequency_penalty", "logit_bias")
_EXTENDED = ("top_k", "stop_token_ids", "ignore_eos", "include_stop_str_in_output")


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of server is asked for, and how. `offers` are names of `SamplingParams` and of prompts' forms."""

    name: str
    offers: frozenset[str]
    renamed: Mapping[str, str] = {}
    constant: Mapping[str, Any] = {}  # sent always: servers have defaults of their own, of the model or their makers
    beside: Mapping[str, Mapping[str, Any]] = {}  # what goes with a field of this name, for it to mean the same
    whole_vocabulary: int = 0  # what it calls a `top_k` of all
    seeds: int = 1 << 63  # below this, and not negative where it is less than 64 bits
    slots: int = 64  # requests at once where the settings leave it open
    cuts_stop: bool = True  # whether its text ends before the stop string

    @property
    def refuses(self) -> frozenset[str]:
        """Names of `SamplingParams`, and of a prompt's forms, that are refused."""
        return frozenset((*SamplingParams.__struct_fields__, "input_ids")) - self.offers


def _dialect(name: str, *fields: str, **more: Any) -> Dialect:
    return Dialect(name=name, offers=frozenset((*_ALWAYS, *fields)), **more)


_USAGE = {"stream_options": {"include_usage": True}}
_OPENAI = _dialect("openai", *_STANDARD, "input_ids", constant=_USAGE)
_VLLM = _dialect(
    "vllm",
    *(*_STANDARD, *_EXTENDED, "repetition_penalty", "min_tokens", "truncate_prompt_tokens", "input_ids"),
    constant={"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "min_p": 0.0},
    beside={"truncate_prompt_tokens": {"truncation_side": "left"}},  # else it is the tokenizer's
    whole_vocabulary=-1,  # 0 only since 0.9
)
_SGLANG = _dialect(
    "sglang",
    # It takes a seed, and keeps to it in its deterministic mode only. Its repetition penalty leaves out the prompt, and
    # stop strings and some end tokens do not wait for its `min_tokens`.
    *("presence_penalty", "frequency_penalty", "logit_bias", *_EXTENDED, "input_ids"),
    renamed={"include_stop_str_in_output": "no_stop_trim"},
    constant=_USAGE | {"min_p": 0.0},
    whole_vocabulary=-1,
)
_TENSORRT_LLM = _dialect(
    "tensorrt-llm",
    # Until the middle of 2026 its default backend took seeds and penalties and did nothing; later its presence and
    # frequency penalties count the prompt. Stop tokens do not wait for its `min_tokens`.
    *("logit_bias", *_EXTENDED, "input_ids"),
    constant=_USAGE | {"min_p": 0.0},
)
_LLAMACPP = _dialect(
    "llamacpp",
    # Its presence and frequency penalties count the prompt's tokens, too.
    *("seed", "logit_bias", "top_k", "repetition_penalty", "ignore_eos", "input_ids"),
    renamed={"repetition_penalty": "repeat_penalty"},
    constant=_USAGE | {"min_p": 0.0, "reasoning_format": "none"},  # what it takes for thoughts is text, too
    beside={"repetition_penalty": {"repeat_last_n": -1}},  # not sent always, as some versions know no -1
    seeds=(1 << 32) - 1,
)
_TRANSFORMERS = _dialect(
    "transformers",
    *("top_k", "repetition_penalty", "logit_bias", "include_stop_str_in_output"),
    slots=1,  # it runs one after another
    cuts_stop=False,
)
DIALECTS = {item.name: item for item in (_OPENAI, _VLLM, _SGLANG, _TENSORRT_LLM, _LLAMACPP, _TRANSFORMERS)}
