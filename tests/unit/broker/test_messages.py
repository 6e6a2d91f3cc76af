import pytest

from broker.chat import ChatMessage, chat_messages
from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.messages import Choice, FinishReason, Output, Request, SamplingParams, Usage, failed_output
from broker.states import JobState, WorkerState

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


def test_an_output_is_its_only_choice_or_has_several():
    output = Output(index=0, text="a", token_ids=(1,), finish_reason=FinishReason.STOP)
    assert output.all_choices() == (Choice(text="a", token_ids=(1,), finish_reason=FinishReason.STOP),)
    two = (*output.all_choices(), Choice(text="b", finish_reason=FinishReason.LENGTH))
    assert Output(index=0, text="a", finish_reason=FinishReason.STOP, choices=two).all_choices() == two


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
