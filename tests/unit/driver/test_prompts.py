import numpy
import pytest

from broker.chat import ChatMessage
from broker.errors import InvalidRequestError
from broker.messages import Request, SamplingParams
from driver.prompts import as_requests, requests_one_by_one

TURN = {"role": "user", "content": "hi"}
PARAMS = SamplingParams(max_tokens=3)


@pytest.mark.parametrize(
    ("prompt", "field", "value"),
    [
        ("hello", "prompt", "hello"),
        ([1, 2], "input_ids", (1, 2)),
        ((1, 2), "input_ids", (1, 2)),
        ([numpy.int64(1), 2], "input_ids", (1, 2)),
        ([TURN], "messages", (ChatMessage(**TURN),)),
        ([ChatMessage(**TURN)], "messages", (ChatMessage(**TURN),)),
    ],
)
def test_a_prompt_of_any_form_becomes_a_request(prompt, field, value):
    (request,) = as_requests([prompt], PARAMS)
    assert (getattr(request, field), request.params) == (value, PARAMS)


def test_a_request_is_taken_as_it_is():
    request = Request(prompt="x", params=SamplingParams(max_tokens=9))
    assert as_requests([request, "y"], PARAMS)[0] == request
    assert as_requests([request], None) == [request]


def test_parameters_that_no_prompt_would_have_are_refused():
    with pytest.raises(InvalidRequestError, match="params of its own"):
        as_requests([Request(prompt="x", params=SamplingParams())], PARAMS)


def test_parameters_for_each_prompt_are_refused_beside_a_request_with_others():
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\] is a Request.* leave params out"):
        as_requests(["x", Request(prompt="y", params=PARAMS)], [PARAMS, PARAMS])


@pytest.mark.parametrize("form", [list, iter])
def test_one_by_one_too_parameters_that_no_prompt_may_have_are_refused(form):
    own = Request(prompt="x", params=SamplingParams())
    with pytest.raises(InvalidRequestError, match=r"params of its own.* leave params out"):
        list(requests_one_by_one(form([own, own]), PARAMS))
    assert list(requests_one_by_one(form([own, own]), None)) == [own, own]
    mixed = requests_one_by_one(form(["y", own]), PARAMS)
    assert [item.params for item in mixed] == [PARAMS, own.params]
    assert list(requests_one_by_one(form([]), PARAMS)) == []


def test_a_list_may_begin_with_a_request_when_another_prompt_needs_the_parameters():
    own = Request(prompt="x", params=SamplingParams())
    assert [item.params for item in requests_one_by_one([own, "y"], PARAMS)] == [own.params, PARAMS]


def test_a_list_of_requests_with_parameters_is_refused_before_anything_is_submitted():
    with pytest.raises(InvalidRequestError, match="every prompt is a Request"):
        requests_one_by_one([Request(prompt="x", params=SamplingParams())], PARAMS)


def test_parameters_may_be_left_out_shared_or_one_for_each():
    assert [item.params for item in as_requests(["a", "b"], None)] == [SamplingParams()] * 2
    assert [item.params for item in as_requests(["a", "b"], PARAMS)] == [PARAMS] * 2
    own = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)]
    assert [item.params for item in as_requests(["a", "b"], own)] == own


def test_another_number_of_parameters_is_refused():
    with pytest.raises(InvalidRequestError, match="1 for 2 prompts"):
        as_requests(["a", "b"], [PARAMS])


def test_no_prompts_are_refused():
    with pytest.raises(InvalidRequestError, match="at least one prompt"):
        as_requests([], None)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        [],
        b"text",
        bytearray(b"text"),
        memoryview(b"text"),
        [1, "x"],
        [1.5],
        [True],
        [10**30],
        "\ud800",
        None,
        5,
        {"prompt": "x"},
        [TURN, "x"],
        [[TURN]],
    ],
)
def test_a_wrong_prompt_is_refused_by_its_place(wrong):
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]: "):
        as_requests(["fine", wrong], None)


def test_a_wrong_turn_is_refused_by_its_place_in_its_place():
    with pytest.raises(InvalidRequestError, match=r"^prompts\[0\]: messages: .*\$\[1\]"):
        as_requests([[TURN, {"role": "user"}]], None)


def test_what_was_wrong_is_shown_but_not_at_length():
    with pytest.raises(InvalidRequestError) as caught:
        as_requests([["x" * 1000, 1]], None)
    assert len(str(caught.value)) < 250
    assert "…" in str(caught.value)


@pytest.mark.parametrize("prompts", ["text", 5, None])
def test_what_is_no_row_of_prompts_is_refused_before_the_first(prompts):
    with pytest.raises(InvalidRequestError, match="prompts must be prompts"):
        requests_one_by_one(prompts, None)


def test_all_prompts_of_a_call_may_stream():
    own = Request(prompt="x", params=PARAMS)
    assert [item.stream for item in as_requests(["a", own, [1]], PARAMS, stream=True)] == [True] * 3
    streaming = Request(prompt="x", params=PARAMS, stream=True)
    assert [item.stream for item in as_requests(["a", streaming], PARAMS)] == [False, True]
    with pytest.raises(InvalidRequestError, match=r"prompts\[1\]: stream is not offered with n above 1"):
        as_requests(["a", "b"], [PARAMS, SamplingParams(n=2)], stream=True)
