import pytest

from broker.messages import FinishReason, Request, SamplingParams
from gpu_worker.engine.completions import Ending, completion_of

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
END = ord("#")


def decode(token_ids):
    """A tokenizer whose tokens are bytes."""
    return bytes(token_ids).decode("utf-8", "replace")


def completed(text, **params):
    params = SamplingParams(**{"max_tokens": 100} | params)
    ending = Ending(params, (END,), decode)
    tokens = tuple(text.encode())
    assert ending.reached(tokens) or len(tokens) < params.max_tokens
    made = completion_of(
        "a",
        Request(params=params, prompt="Why? "),
        prompt_ids=(65, 66),
        tokens=tokens,
        ending=ending,
        decode=decode,
    )
    return made.text, len(made.token_ids), made.finish_reason


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("abc", {}, ("abc", 3, LENGTH)),
        ("abc#", {}, ("abc", 4, STOP)),
        ("abc#", {"include_stop_str_in_output": True}, ("abc#", 4, STOP)),
        ("abc#", {"ignore_eos": True}, ("abc#", 4, LENGTH)),
        ("abc#", {"min_tokens": 4}, ("abc#", 4, LENGTH)),
        ("abc#", {"min_tokens": 3}, ("abc", 4, STOP)),
        ("abcx", {"stop_token_ids": (ord("x"),)}, ("abc", 4, STOP)),
        ("abcdef", {"max_tokens": 3}, ("abc", 3, LENGTH)),
        ("abcdef", {"stop": ("cd",)}, ("ab", 4, STOP)),
        ("abcdef", {"stop": ("cd",), "include_stop_str_in_output": True}, ("abcd", 4, STOP)),
        ("a.b.c.d", {"stop": (".",), "min_tokens": 4}, ("a.b", 4, STOP)),
        ("a.b.c.d", {"stop": (".",), "min_tokens": 5, "include_stop_str_in_output": True}, ("a.b.c.", 6, STOP)),
        ("a.b", {"echo": True}, ("Why? a.b", 3, LENGTH)),
        ("a.b", {"echo": True, "stop": (".",)}, ("Why? a", 2, STOP)),
        ("a.b", {"echo": True, "truncate_prompt_tokens": 2}, ("ABa.b", 3, LENGTH)),
        ("\u65e5\u672c", {"max_tokens": 5}, ("\u65e5", 5, LENGTH)),  # in the middle of a character
    ],
)
def test_how_a_text_ends(text, params, expected):
    assert completed(text, **params) == expected


@pytest.mark.parametrize(
    ("tokens", "params", "reached"),
    [
        (b"", {}, False),
        (b"ab", {"max_tokens": 2}, True),
        (b"a#", {}, True),
        (b"#", {"min_tokens": 1}, False),
        (b"ab#", {"min_tokens": 2}, True),
        (b"a#", {"ignore_eos": True}, False),
        (b"ax", {"stop_token_ids": (ord("x"),)}, True),
        (b"abc", {"stop": ("bc",)}, True),
        (b"abc", {"stop": ("bc",), "min_tokens": 4}, False),
    ],
)
def test_when_it_is_over(tokens, params, reached):
    params = SamplingParams(**{"max_tokens": 100} | params)
    assert Ending(params, (END,), decode).reached(tokens) == reached
