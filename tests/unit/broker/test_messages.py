import pytest

from broker.errors import InvalidRequestError
from broker.messages import (
    MAX_STOP_STRINGS,
    MAX_TOKENS_LIMIT,
    SEED_LIMIT,
    ChatMessage,
    FinishReason,
    JobState,
    Output,
    Request,
    SamplingParams,
    Usage,
    WorkerState,
    chat_messages,
    failed_output,
)

NAN, INFINITY = float("nan"), float("inf")
HUGE = 10**400  # more than a float can hold

ACCEPTED = [
    ("max_tokens", [1, MAX_TOKENS_LIMIT]),
    ("temperature", [0, 0.0, 1, 100.0]),
    ("top_p", [1e-9, 0.5, 1, 1.0]),
    ("top_k", [0, 1, MAX_TOKENS_LIMIT]),
    ("seed", [None, 0, -SEED_LIMIT, SEED_LIMIT - 1]),
    ("stop", [(), ("x",), ("x",) * MAX_STOP_STRINGS]),
]
REFUSED = [
    ("max_tokens", [0, -1, MAX_TOKENS_LIMIT + 1, HUGE, 1.0, True, "16", None]),
    ("temperature", [-0.1, 100.1, NAN, INFINITY, -INFINITY, HUGE, True, "1", None]),
    ("top_p", [0, 0.0, -0.5, 1.1, NAN, INFINITY, HUGE, True, "1", None]),
    ("top_k", [-1, MAX_TOKENS_LIMIT + 1, HUGE, 1.0, True, "1", None]),
    ("seed", [SEED_LIMIT, -SEED_LIMIT - 1, HUGE, 1.0, True, "1"]),
    ("stop", [("",), ("x", ""), "", ("x",) * (MAX_STOP_STRINGS + 1), (1,), 1, {"x": 1}, None, "\ud800"]),
]


def flat(table):
    return [pytest.param(name, value, id=f"{name}={value!r}"[:40]) for name, values in table for value in values]


@pytest.mark.parametrize(("name", "value"), flat(ACCEPTED))
def test_a_value_in_its_range_is_accepted(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), flat(REFUSED))
def test_a_value_outside_its_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})


def test_the_range_is_in_the_message():
    with pytest.raises(InvalidRequestError, match=f"a whole number from 1 to {MAX_TOKENS_LIMIT}, not 0"):
        SamplingParams(max_tokens=0)
    with pytest.raises(InvalidRequestError, match="a number from 0 to 100, not nan"):
        SamplingParams(temperature=NAN)


@pytest.mark.parametrize("given", ["END", ["END"], ("END",)])
def test_stop_is_a_tuple_however_it_was_given(given):
    assert SamplingParams(stop=given).stop == ("END",)


def test_parameters_do_not_change():
    with pytest.raises(AttributeError):
        SamplingParams().max_tokens = 2


PROMPTS = {
    "prompt": "hello",
    "messages": (ChatMessage(role="user", content="hello"),),
    "input_ids": (1, 2),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_each_form_of_prompt_is_enough(name):
    assert getattr(Request(params=SamplingParams(), **{name: PROMPTS[name]}), name) == PROMPTS[name]


@pytest.mark.parametrize(
    "names", [(), ("prompt", "messages"), ("messages", "input_ids"), ("prompt", "input_ids"), tuple(PROMPTS)]
)
def test_any_other_number_of_prompts_is_refused(names):
    with pytest.raises(InvalidRequestError, match=f"exactly one .* got {', '.join(names) or 'none'}"):
        Request(params=SamplingParams(), **{name: PROMPTS[name] for name in names})


@pytest.mark.parametrize(("name", "empty"), [("prompt", ""), ("messages", ()), ("input_ids", ())])
def test_an_empty_prompt_is_refused(name, empty):
    with pytest.raises(InvalidRequestError, match=f"{name} must not be empty"):
        Request(params=SamplingParams(), **{name: empty})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", b"bytes"),
        ("prompt", 5),
        ("prompt", "half a pair: \ud800"),
        ("messages", ({"role": "user", "content": "x"},)),
        ("messages", [ChatMessage(role="user", content="x")]),
        ("messages", (ChatMessage(role="user", content=5),)),
        ("messages", (ChatMessage(role="\ud800", content="x"),)),
        ("input_ids", [1, 2]),
        ("input_ids", ("1",)),
        ("input_ids", (True,)),
        ("input_ids", (1.0,)),
        ("input_ids", (10**30,)),
    ],
)
def test_a_prompt_that_no_worker_could_read_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        Request(params=SamplingParams(), **{name: value})


def test_other_fields_of_a_wrong_type_are_refused_by_name():
    with pytest.raises(InvalidRequestError, match="params"):
        Request(prompt="x", params={"max_tokens": 3})
    with pytest.raises(InvalidRequestError, match="return_input_ids"):
        Request(prompt="x", params=SamplingParams(), return_input_ids=1)


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
    assert request.estimated_prompt_tokens() == tokens
    assert request.estimated_tokens() == tokens + 7


def test_chat_turns_may_be_dicts():
    assert chat_messages([{"role": "user", "content": "hi"}, ChatMessage(role="assistant", content="yes")]) == (
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="assistant", content="yes"),
    )


@pytest.mark.parametrize("turn", [{"role": "user"}, {"content": "x"}, {"role": "user", "content": 1}, "x"])
def test_a_wrong_chat_turn_is_refused_by_its_place(turn):
    with pytest.raises(InvalidRequestError, match=r"messages: .*\$\[1\]"):
        chat_messages([{"role": "user", "content": "hi"}, turn])


def test_a_failed_output_has_an_error_and_no_text():
    output = failed_output(3, "cancelled", "stop", worker_id="gpu0@host")
    assert (output.index, output.text, output.token_ids, output.worker_id) == (3, "", (), "gpu0@host")
    assert (output.finish_reason, output.error.code, output.error.message) == (FinishReason.ERROR, "cancelled", "stop")


def test_usage_adds_up():
    assert Usage(prompt_tokens=3, completion_tokens=4).total_tokens == 7
    assert Output(index=0, finish_reason=FinishReason.STOP).usage.total_tokens == 0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FinishReason, {"stop", "length", "error"}),
        (JobState, {"open", "running", "done"}),
        (WorkerState, {"starting", "loading", "ready", "draining", "poisoned", "dead"}),
    ],
)
def test_the_words_on_the_wire_are_stable(kind, words):
    assert {str(item) for item in kind} == words
