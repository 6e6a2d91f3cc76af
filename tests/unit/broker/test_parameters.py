import numpy
import pytest

from broker.chat import ChatMessage
from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.messages import Request
from broker.parameters import (
    MAX_ALTERNATIVES,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    MAX_TOKENS_LIMIT,
    SEED_LIMIT,
    SamplingParams,
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
    ("min_tokens", [0, 1, 16]),
    ("stop_token_ids", [(), (0, 2**31 - 1), (5,) * MAX_STOP_TOKENS]),
    ("ignore_eos", [True, False]),
    ("include_stop_str_in_output", [True, False]),
    ("echo", [True, False]),
    ("repetition_penalty", [None, 1e-9, 1, 100.0]),
    ("presence_penalty", [-2, 0, 2.0]),
    ("frequency_penalty", [-2, 0, 2.0]),
    ("logit_bias", [(), ((0, -100.0), (2**31 - 1, 100.0)), tuple((i, 0.0) for i in range(MAX_BIASES))]),
    ("logprobs", [None, 0, MAX_ALTERNATIVES]),
    ("n", [1, MAX_CHOICES]),
    ("truncate_prompt_tokens", [None, 1, MAX_TOKENS_LIMIT]),
]
REFUSED = [
    ("max_tokens", [0, -1, MAX_TOKENS_LIMIT + 1, HUGE, 1.0, True, "16", None]),
    ("temperature", [-0.1, 100.1, NAN, INFINITY, -INFINITY, HUGE, True, "1", None]),
    ("top_p", [0, 0.0, -0.5, 1.1, NAN, INFINITY, HUGE, True, "1", None]),
    ("top_k", [-1, MAX_TOKENS_LIMIT + 1, HUGE, 1.0, True, "1", None]),
    ("seed", [SEED_LIMIT, -SEED_LIMIT - 1, HUGE, 1.0, True, "1"]),
    ("stop", [("",), ("x", ""), "", ("x",) * (MAX_STOP_STRINGS + 1), (1,), 1, {"x": 1}, None, "\ud800"]),
    ("min_tokens", [-1, 17, 1.0, True, "1", None]),  # 17: above the default max_tokens
    ("stop_token_ids", [(-1,), (2**31,), (True,), ("5",), 5, "5", None, (5,) * (MAX_STOP_TOKENS + 1)]),
    ("ignore_eos", [1, 0, "true", None]),
    ("include_stop_str_in_output", [1, None]),
    ("echo", [1, None]),
    ("repetition_penalty", [0, 0.0, -1, 100.1, NAN, INFINITY, HUGE, True, "1"]),
    ("presence_penalty", [-2.1, 2.1, NAN, INFINITY, HUGE, True, "1", None]),
    ("frequency_penalty", [-2.1, 2.1, NAN, True, "1", None]),
    ("logit_bias", [{5: 101}, {5: -101}, {5: NAN}, {5: HUGE}, {5: "1"}, {5: True}, {-1: 1}, {2**31: 1}, {"x": 1}]),
    (
        "logit_bias",
        [{"-1": 1}, {"٣": 1}, {True: 1}, {1.0: 1}, [1], [(1,)], "5", 5, None, dict.fromkeys(range(1025), 1)],
    ),
    ("logprobs", [-1, MAX_ALTERNATIVES + 1, 1.0, True, "1"]),
    ("n", [0, MAX_CHOICES + 1, 1.0, True, "1", None]),
    ("truncate_prompt_tokens", [0, -1, MAX_TOKENS_LIMIT + 1, 1.0, True, "1"]),
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


@pytest.mark.parametrize("given", [{7: -1, "5": 2}, {"5": 2.0, "7": -1.0}, ((7, -1), (5, 2)), [[5, 2], [7, -1]]])
def test_biases_are_sorted_pairs_however_they_were_given(given):
    assert SamplingParams(logit_bias=given).logit_bias == ((5, 2.0), (7, -1.0))


def test_what_is_not_offered_together_is_refused_as_unsupported():
    with pytest.raises(UnsupportedParameterError, match="echo with logprobs"):
        SamplingParams(echo=True, logprobs=0)
    with pytest.raises(UnsupportedParameterError, match="echo is not offered for messages"):
        Request(params=SamplingParams(echo=True), messages=(ChatMessage(role="user", content="x"),))


def test_parameters_do_not_change():
    with pytest.raises(AttributeError):
        SamplingParams().max_tokens = 2


@pytest.mark.parametrize(
    ("name", "given", "plain"),
    [
        ("temperature", numpy.float64(0.5), 0.5),
        ("top_p", numpy.float32(0.5), 0.5),
        ("max_tokens", numpy.int64(5), 5),
        ("seed", numpy.uint8(5), 5),
    ],
)
def test_a_number_of_numpy_is_taken_as_pythons_own(name, given, plain):
    value = getattr(SamplingParams(**{name: given}), name)
    assert (value, type(value)) == (plain, type(plain))


@pytest.mark.parametrize("given", [numpy.float64("nan"), numpy.bool_(True), numpy.zeros(1), True])
def test_what_is_no_number_of_numpy_is_refused(given):
    with pytest.raises(InvalidRequestError, match="temperature must be a number"):
        SamplingParams(temperature=given)
