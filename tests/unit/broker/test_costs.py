import pytest

from broker.chat import ChatMessage, chat_messages
from broker.costs import estimated_prompt_tokens, estimated_tokens, prefix_key
from broker.messages import Request, SamplingParams


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ({"input_ids": (1, 2, 3)}, 3),
        ({"prompt": "x"}, 1),
        ({"prompt": "x" * 400}, 100),
        ({"prompt": "é" * 400}, 200),
        ({"messages": (ChatMessage(role="user", content="x" * 64),)}, 20),
    ],
)
def test_the_prompts_length_is_estimated_from_its_bytes(prompt, tokens):
    request = Request(params=SamplingParams(max_tokens=7), **prompt)
    assert estimated_prompt_tokens(request) == tokens
    assert estimated_tokens(request) == tokens + 7


def test_every_text_and_a_truncated_prompt_are_estimated():
    request = Request(params=SamplingParams(max_tokens=7, n=3, truncate_prompt_tokens=20), prompt="x" * 400)
    assert (estimated_prompt_tokens(request), estimated_tokens(request)) == (20, 81)


def prefix_of(**prompt):
    return prefix_key(Request(params=SamplingParams(), **prompt))


def turns(system, user):
    return chat_messages([{"role": "system", "content": system}, {"role": "user", "content": user}])


def test_prompts_that_begin_alike_have_the_same_key():
    long = "x" * 256
    assert prefix_of(messages=turns(long, "a")) == prefix_of(messages=turns(long, "b")) != 0
    assert prefix_of(prompt=long + "a") == prefix_of(prompt=long + "b") != prefix_of(prompt="y" + long)
    ids = tuple(range(64))
    assert prefix_of(input_ids=(*ids, 1)) == prefix_of(input_ids=(*ids, 2)) != prefix_of(input_ids=(9, *ids))
    assert prefix_of(messages=turns(long + "other", "a")) != prefix_of(messages=turns(long, "a"))


@pytest.mark.parametrize(
    "prompt", [{"prompt": "x" * 255}, {"messages": turns("short", "x" * 999)}, {"input_ids": (1,) * 63}]
)
def test_a_short_beginning_is_not_worth_a_key(prompt):
    assert prefix_of(**prompt) == 0
