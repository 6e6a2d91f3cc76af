"""What goes to an OpenAI-compatible server: a request as the JSON body that a kind of server takes."""

import json
from typing import Any

import msgspec

from broker.errors import UnsupportedParameterError
from broker.messages import Request
from broker.parameters import SamplingParams
from gpu_worker.engine.openai_dialects import Dialect
from gpu_worker.engine.refusal import refuse


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request to the server."""

    path: str
    body: dict[str, Any]


def call_of(dialect: Dialect, model: str, request: Request) -> Call:
    """The request as this kind of server takes it.

    Raises:
        UnsupportedParameterError: the server does not offer something that the request asks for.
    """
    refuse(request, dialect.refuses, f"servers of the kind {dialect.name}")
    params = request.params
    body: dict[str, Any] = {"model": model, "stream": True, **dialect.constant}
    if dialect.name == "transformers":
        body["generation_config"] = json.dumps(_generation_config(params))
    else:
        body |= _fields(dialect, params)
    if request.messages is not None:
        body["messages"] = [msgspec.structs.asdict(turn) for turn in request.messages]
        return Call(path="v1/chat/completions", body=body)
    body["prompt"] = request.prompt if request.input_ids is None else list(request.input_ids)
    return Call(path="v1/completions", body=body)


def _fields(dialect: Dialect, params: SamplingParams) -> dict[str, Any]:
    seed = params.seed
    if seed is not None and dialect.seeds < 1 << 63 and not 0 <= seed < dialect.seeds:
        raise UnsupportedParameterError(f"seed must be from 0 to {dialect.seeds - 1} for {dialect.name}, not {seed}")
    fields: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or dialect.whole_vocabulary,
        "stop": list(params.stop) or None,
        "seed": seed,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias} or None,
        "repetition_penalty": params.repetition_penalty,
        "min_tokens": params.min_tokens or None,
        "stop_token_ids": list(params.stop_token_ids) or None,
        "ignore_eos": params.ignore_eos or None,
        "include_stop_str_in_output": params.include_stop_str_in_output or None,
        "truncate_prompt_tokens": params.truncate_prompt_tokens,
    }
    body: dict[str, Any] = {}
    for name, value in fields.items():
        if value is not None and name in dialect.offers:
            body |= {dialect.renamed.get(name, name): value, **dialect.beside.get(name, {})}
    return body


def _generation_config(params: SamplingParams) -> dict[str, Any]:
    """For `transformers serve`, whose own fields cannot say that a request is to be sampled."""
    config: dict[str, Any] = {"max_new_tokens": params.max_tokens, "do_sample": params.temperature > 0}
    if params.temperature > 0:
        config |= {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
    if params.stop:
        config["stop_strings"] = list(params.stop)
    if params.repetition_penalty is not None:
        config["repetition_penalty"] = params.repetition_penalty
    if params.logit_bias:
        config["sequence_bias"] = [[[token], float(bias)] for token, bias in params.logit_bias]
    return config
