import pytest

from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.messages import (
    ChatMessage,
    Choice,
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


def test_stream_is_a_flag_and_for_one_text():
    with pytest.raises(InvalidRequestError, match="stream must be True or False, not 1"):
        Request(prompt="x", params=SamplingParams(), stream=1)
    with pytest.raises(UnsupportedParameterError, match="stream is not offered with n above 1, which is 2"):
        Request(prompt="x", params=SamplingParams(n=2), stream=True)


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


def prefix_of(**prompt):
    return Request(params=SamplingParams(), **prompt).prefix_key()


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


def test_chat_turns_may_be_dicts():
    assert chat_messages([{"role": "user", "content": "hi"}, ChatMessage(role="assistant", content="yes")]) == (
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="assistant", content="yes"),
    )


def test_a_turns_content_may_be_text_parts():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat_messages([{"role": "user", "content": parts}]) == (ChatMessage(role="user", content="a\nb"),)
    with pytest.raises(UnsupportedParameterError, match=r"^messages\[0\]\.content\[0\]\.type 'image_url'"):
        chat_messages([{"role": "user", "content": [{"type": "image_url"}]}])


def test_tool_calls_in_a_turn_are_refused_and_empty_ones_are_not():
    turn = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": []}
    assert chat_messages([turn]) == (ChatMessage(role="assistant", content="x"),)
    with pytest.raises(UnsupportedParameterError, match=r"^messages\[0\]\.tool_calls is not offered"):
        chat_messages([turn | {"tool_calls": [{"id": "1"}]}])


def test_every_text_and_a_truncated_prompt_are_estimated():
    request = Request(params=SamplingParams(max_tokens=7, n=3, truncate_prompt_tokens=20), prompt="x" * 400)
    assert (request.estimated_prompt_tokens(), request.estimated_tokens()) == (20, 81)


def test_an_output_is_its_only_choice_or_has_several():
    output = Output(index=0, text="a", token_ids=(1,), finish_reason=FinishReason.STOP)
    assert output.all_choices() == (Choice(text="a", token_ids=(1,), finish_reason=FinishReason.STOP),)
    two = (*output.all_choices(), Choice(text="b", finish_reason=FinishReason.LENGTH))
    assert Output(index=0, text="a", finish_reason=FinishReason.STOP, choices=two).all_choices() == two


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
        (WorkerState, {"starting", "loading", "ready", "sleeping", "draining", "poisoned", "dead"}),
    ],
)
def test_the_words_on_the_wire_are_stable(kind, words):
    assert {str(item) for item in kind} == words


def test_a_turn_that_cannot_be_sent_is_named_by_its_place():
    turns = chat_messages([{"role": "user", "content": "hi"}, {"role": "user", "content": "\udcff"}])
    with pytest.raises(InvalidRequestError, match=r"^messages\[1\]\.content must be text that UTF-8 can hold"):
        Request(params=SamplingParams(), messages=turns)


@pytest.mark.parametrize("turns", [5, "hi", {"role": "user"}, None])
def test_turns_that_are_no_list_are_refused(turns):
    with pytest.raises(InvalidRequestError, match="messages must be a list of turns"):
        chat_messages(turns)
