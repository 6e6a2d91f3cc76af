import json

import pytest

from broker.chat import ChatMessage
from broker.errors import UnsupportedParameterError
from broker.messages import FinishReason, Request, SamplingParams, Usage
from gpu_worker.engine.openai_dialects import DIALECTS
from gpu_worker.engine.openai_events import Event, ServerError, error_text, read_event
from gpu_worker.engine.openai_wire import call_of
from gpu_worker.settings import OPENAI_DIALECTS

# What each kind of server is sent for a wish; None: it is refused.
FIELDS = {
    "openai": {
        "seed": {"seed": 7},
        "presence_penalty": {"presence_penalty": 0.5},
        "frequency_penalty": {"frequency_penalty": 0.5},
        "logit_bias": {"logit_bias": {"3": 1.0}},
        "stop": {"stop": ["x"]},
        "top_k": None,
        "repetition_penalty": None,
        "min_tokens": None,
        "stop_token_ids": None,
        "ignore_eos": None,
        "include_stop_str_in_output": None,
        "truncate_prompt_tokens": None,
        "logprobs": None,
    },
    "vllm": {
        "seed": {"seed": 7},
        "presence_penalty": {"presence_penalty": 0.5},
        "frequency_penalty": {"frequency_penalty": 0.5},
        "logit_bias": {"logit_bias": {"3": 1.0}},
        "stop": {"stop": ["x"]},
        "top_k": {"top_k": 3},
        "repetition_penalty": {"repetition_penalty": 1.5},
        "min_tokens": {"min_tokens": 2},
        "stop_token_ids": {"stop_token_ids": [3]},
        "ignore_eos": {"ignore_eos": True},
        "include_stop_str_in_output": {"include_stop_str_in_output": True},
        "truncate_prompt_tokens": {"truncate_prompt_tokens": 2, "truncation_side": "left"},
        "logprobs": None,
    },
    "sglang": {
        "seed": None,
        "presence_penalty": {"presence_penalty": 0.5},
        "repetition_penalty": None,
        "min_tokens": None,
        "top_k": {"top_k": 3},
        "include_stop_str_in_output": {"no_stop_trim": True},
        "truncate_prompt_tokens": None,
        "logprobs": None,
    },
    "tensorrt-llm": {
        "stop_token_ids": {"stop_token_ids": [3]},
        "logit_bias": {"logit_bias": {"3": 1.0}},
        "seed": None,
        "presence_penalty": None,
        "frequency_penalty": None,
        "repetition_penalty": None,
        "min_tokens": None,
        "truncate_prompt_tokens": None,
    },
    "llamacpp": {
        "seed": {"seed": 7},
        "presence_penalty": None,
        "frequency_penalty": None,
        "repetition_penalty": {"repeat_penalty": 1.5, "repeat_last_n": -1},
        "ignore_eos": {"ignore_eos": True},
        "min_tokens": None,
        "stop_token_ids": None,
        "include_stop_str_in_output": None,
    },
    "transformers": {
        "seed": None,
        "presence_penalty": None,
        "frequency_penalty": None,
        "min_tokens": None,
        "stop_token_ids": None,
        "ignore_eos": None,
        "truncate_prompt_tokens": None,
        "logprobs": None,
    },
}
WISHES = {
    "seed": 7,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {3: 1.0},
    "stop": ("x",),
    "top_k": 3,
    "repetition_penalty": 1.5,
    "min_tokens": 2,
    "stop_token_ids": (3,),
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "truncate_prompt_tokens": 2,
    "logprobs": 1,
}


def body_of(dialect, **params):
    return call_of(DIALECTS[dialect], "m", Request(params=SamplingParams(**params), prompt="p")).body


def test_the_settings_know_every_kind():
    assert ("auto", *DIALECTS) == OPENAI_DIALECTS


@pytest.mark.parametrize(("dialect", "name"), [(dialect, name) for dialect in FIELDS for name in FIELDS[dialect]])
def test_a_wish_is_sent_as_the_server_knows_it_or_refused(dialect, name):
    expected = FIELDS[dialect][name]
    if expected is None:
        with pytest.raises(UnsupportedParameterError, match=f"{name} is not offered"):
            body_of(dialect, **{name: WISHES[name]})
        assert name in DIALECTS[dialect].refuses
        return
    plain, body = body_of(dialect), body_of(dialect, **{name: WISHES[name]})
    assert {key: value for key, value in body.items() if plain.get(key) != value} == expected


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "transformers"])
def test_sampling_is_always_said_as_servers_have_defaults_of_their_own(dialect):
    body = body_of(dialect)
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["stream"]) == (16, 1.0, 1.0, True)
    assert body["stream_options"]["include_usage"] is True
    if "top_k" in DIALECTS[dialect].offers:
        assert body["top_k"] == (-1 if dialect in ("sglang", "vllm") else 0)
        assert body["min_p"] == 0.0
    for name in {"presence_penalty", "frequency_penalty"} & DIALECTS[dialect].offers:
        assert body[name] == 0.0


def test_what_is_neutral_is_not_sent_to_servers_that_do_not_know_it():
    assert "repetition_penalty" not in body_of("openai", repetition_penalty=1)
    assert "repeat_last_n" not in body_of("llamacpp")


def test_transformers_serve_gets_a_generation_config_as_it_samples_by_no_other_field():
    body = body_of("transformers", temperature=0.5, top_p=0.9, top_k=4, stop="x", logit_bias={3: 1}, max_tokens=5)
    assert set(body) == {"model", "stream", "prompt", "generation_config"}
    assert json.loads(body["generation_config"]) == {
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "max_new_tokens": 5,
        "stop_strings": ["x"],
        "sequence_bias": [[[3], 1.0]],
    }
    greedy = json.loads(body_of("transformers", temperature=0, repetition_penalty=1.5)["generation_config"])
    assert greedy == {"do_sample": False, "max_new_tokens": 16, "repetition_penalty": 1.5}


def test_a_seed_that_a_server_would_cut_short_is_refused():
    assert body_of("llamacpp", seed=2**32 - 2)["seed"] == 2**32 - 2
    for seed in (-1, 2**32 - 1):
        with pytest.raises(UnsupportedParameterError, match="seed must be from 0 to 4294967294"):
            body_of("llamacpp", seed=seed)
    assert body_of("vllm", seed=-1)["seed"] == -1


def test_token_ids_go_to_servers_that_take_them():
    request = Request(params=SamplingParams(), input_ids=(1, 2))
    assert call_of(DIALECTS["vllm"], "m", request).body["prompt"] == [1, 2]
    with pytest.raises(UnsupportedParameterError, match="input_ids"):
        call_of(DIALECTS["transformers"], "m", request)


def test_a_chat_goes_to_its_own_endpoint():
    call = call_of(
        DIALECTS["vllm"], "m", Request(params=SamplingParams(), messages=(ChatMessage(role="user", content="a"),))
    )
    assert call.path == "v1/chat/completions"
    assert call.body["messages"] == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("data", "event"),
    [
        ({"choices": [{"text": "a", "finish_reason": None}]}, Event(text="a")),
        ({"choices": [{"delta": {"content": "a"}}]}, Event(text="a")),
        ({"choices": [{"delta": {}, "finish_reason": "eos"}]}, Event(finish_reason=FinishReason.STOP)),
        ({"choices": [{"text": "", "finish_reason": "length"}]}, Event(finish_reason=FinishReason.LENGTH)),
        (
            {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}},
            Event(usage=Usage(prompt_tokens=2, completion_tokens=3)),
        ),
    ],
)
def test_an_event_is_read(data, event):
    assert read_event(json.dumps(data)) == event


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ("{", 502),
        ("3", 502),
        ('{"choices": [{}]}', 502),
        ('{"choices": 3}', 502),
        ('{"usage": {"a": 1}}', 502),
        ('{"error": {"message": "no", "code": 400}}', 400),
        ('{"error": "no"}', 500),
        ('{"choices": [{"text": "", "finish_reason": "content_filter"}]}', 400),
        ('{"choices": [{"text": "", "finish_reason": "abort"}]}', 500),
    ],
)
def test_what_is_no_event_is_an_error(data, status):
    with pytest.raises(ServerError) as caught:
        read_event(data)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error": {"message": "no", "type": "x"}}', "no"),
        ('{"detail": "no"}', "no"),
        ('{"message": "no"}', "no"),
        ('{"detail": [{"loc": ["a"]}]}', '[{"loc": ["a"]}]'),
        ("<html>", "<html>"),
        ("", ""),
    ],
)
def test_the_servers_words_are_found(body, words):
    assert error_text(body) == words
