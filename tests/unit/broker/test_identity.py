from hypothesis import given
from hypothesis import strategies as st

from broker.chat import ChatMessage
from broker.identity import digest
from broker.messages import Request, SamplingParams
from broker.parameters import SEED_LIMIT

TURN = ChatMessage(role="user", content="a")


def of(prompt="a", **params):
    return digest(Request(prompt=prompt, params=SamplingParams(**params)))


def test_prompts_of_different_form_differ():
    params = SamplingParams(temperature=0)
    forms = ({"prompt": "a"}, {"messages": (TURN,)}, {"input_ids": (97,)}, {"prompt": "a", "return_input_ids": True})
    assert len({digest(Request(params=params, **form)) for form in forms}) == 4


def test_every_parameter_but_those_of_sampling_matters_to_a_greedy_text():
    changed = {
        "max_tokens": 9,
        "stop": ("x",),
        "min_tokens": 1,
        "stop_token_ids": (1,),
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {1: 2.0},
        "logprobs": 0,
        "echo": True,
        "n": 2,
        "truncate_prompt_tokens": 5,
    }
    assert set(changed) | {"temperature", "top_p", "top_k", "seed"} >= set(SamplingParams.__struct_fields__)
    digests = {of(temperature=0, **({name: value} if name else {})) for name, value in [("", 0), *changed.items()]}
    assert len(digests - {b""}) == len(changed) + 1


@given(st.integers(-SEED_LIMIT, SEED_LIMIT - 1), st.integers(-SEED_LIMIT, SEED_LIMIT - 1))
def test_seeds_differ_to_the_last_bit(one, other):
    assert (of(seed=one) == of(seed=other)) == (one == other)
    assert of(seed=one, temperature=0) == of(seed=other, temperature=0) == of(temperature=0)


def test_sampling_without_a_seed_stands_for_itself():
    assert of() == of(temperature=0.1) == b""


def test_a_request_that_is_streamed_stands_for_itself():
    assert digest(Request(prompt="a", params=SamplingParams(temperature=0), stream=True)) == b""
