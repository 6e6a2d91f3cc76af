import numpy
import pytest

from broker.errors import InvalidRequestError
from broker.messages import Alternative, Choice, FinishReason, Output, SamplingParams, TokenLogprob
from driver.task import task_request, task_result


def test_a_task_takes_every_parameter_by_its_name():
    task = {"prompt": "x", "max_new_tokens": 3, "n": 2, "logit_bias": {"5": 1}, "presence_penalty": 1, "logprobs": 0}
    request = task_request(task)
    assert request.params == SamplingParams(max_tokens=3, n=2, logit_bias=((5, 1.0),), presence_penalty=1, logprobs=0)
    assert request.return_input_ids


@pytest.mark.parametrize("field", ["tools", "tool_choice", "response_format", "beam_width"])
def test_a_field_that_is_not_offered_is_refused_by_name(field):
    with pytest.raises(InvalidRequestError, match=f"unknown field '{field}'"):
        task_request({"prompt": "x", field: []})


def test_a_plain_result_has_the_plain_fields_only():
    output = Output(index=0, text="a", token_ids=(1,), finish_reason=FinishReason.STOP, input_ids=(5,), worker_id="w")
    assert task_result(output) == {
        "generated_text": "a",
        "input_ids": [5],
        "output_ids": [1],
        "worker_id": "w",
        "finish_reason": "stop",
    }


def test_several_texts_and_log_probabilities_are_in_the_result():
    item = TokenLogprob(
        token_id=1, logprob=-0.5, text="a", alternatives=(Alternative(token_id=2, logprob=-0.25, text="b"),)
    )
    choice = Choice(text="a", token_ids=(1,), finish_reason=FinishReason.STOP, logprobs=(item,))
    result = task_result(
        Output(index=0, text="a", finish_reason=FinishReason.STOP, logprobs=(item,), choices=(choice,))
    )
    said = {
        "token_id": 1,
        "logprob": -0.5,
        "text": "a",
        "alternatives": [{"token_id": 2, "logprob": -0.25, "text": "b"}],
    }
    assert result["logprobs"] == [said]
    assert result["choices"] == [
        {"generated_text": "a", "output_ids": [1], "finish_reason": "stop", "logprobs": [said]}
    ]


@pytest.mark.parametrize("task", [5, None, [], "hello", [("prompt", "x")]])
def test_a_task_that_is_no_mapping_is_refused(task):
    with pytest.raises(InvalidRequestError, match="a task must be a mapping"):
        task_request(task)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_ids", "abc"),
        ("input_ids", 5),
        ("input_ids", []),
        ("input_ids", [1.7, 2]),
        ("input_ids", [True]),
        ("input_ids", ["1"]),
        ("messages", 5),
        ("messages", []),
        ("messages", [5]),
        ("messages", "hello"),
        ("prompt", 5),
    ],
)
def test_a_prompt_of_a_wrong_shape_is_refused_by_its_name(field, value):
    with pytest.raises(InvalidRequestError, match=field):
        task_request({field: value})


@pytest.mark.parametrize("given", [numpy.array([1, 2]), [numpy.int64(1), 2], (1, 2)])
def test_token_ids_may_come_from_numpy(given):
    ids = task_request({"input_ids": given}).input_ids
    assert (ids, [type(token) for token in ids]) == ((1, 2), [int, int])


def test_two_names_of_one_thing_are_refused_together():
    with pytest.raises(InvalidRequestError, match="max_tokens and max_new_tokens"):
        task_request({"prompt": "x", "max_tokens": 2, "max_new_tokens": 2})


def test_a_field_that_is_no_text_is_unknown_too():
    with pytest.raises(InvalidRequestError, match="unknown field 5"):
        task_request({"prompt": "x", 5: 1, "tools": []})


def test_a_task_may_stream():
    assert task_request({"prompt": "x", "stream": True}).stream
    assert not task_request({"prompt": "x"}).stream
    with pytest.raises(InvalidRequestError, match="stream must be True or False, not 'yes'"):
        task_request({"prompt": "x", "stream": "yes"})
