import pytest

from broker.errors import InvalidRequestError
from broker.messages import Alternative, Choice, FinishReason, Output, SamplingParams, TokenLogprob
from driver.driver import _task_request, _task_result


def test_a_task_takes_every_parameter_by_its_name():
    task = {"prompt": "x", "max_new_tokens": 3, "n": 2, "logit_bias": {"5": 1}, "presence_penalty": 1, "logprobs": 0}
    request = _task_request(task)
    assert request.params == SamplingParams(max_tokens=3, n=2, logit_bias=((5, 1.0),), presence_penalty=1, logprobs=0)
    assert request.return_input_ids


@pytest.mark.parametrize("field", ["tools", "tool_choice", "response_format", "beam_width"])
def test_a_field_that_is_not_offered_is_refused_by_name(field):
    with pytest.raises(InvalidRequestError, match=f"unknown field '{field}'"):
        _task_request({"prompt": "x", field: []})


def test_a_plain_result_has_the_plain_fields_only():
    output = Output(index=0, text="a", token_ids=(1,), finish_reason=FinishReason.STOP, input_ids=(5,), worker_id="w")
    assert _task_result(output) == {
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
    result = _task_result(
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
