from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.messages import Request, SamplingParams
from gpu_worker.engine.completions import Ending, completion_of, settled_text

END = ord("#")
TEXT = st.text(alphabet="ab. #é日🙂", max_size=24)


def decode_bytes(token_ids):
    """A tokenizer whose tokens are bytes: every character beyond ASCII is several tokens."""
    return bytes(token_ids).decode("utf-8", "replace")


PIECES = ("", "a", "b.", " ab", "ab. a", ". ", "日", "🙂b")


def decode_pieces(token_ids):
    """Tokens of several characters, and one of none."""
    return "".join(PIECES[token_id % len(PIECES)] for token_id in token_ids)


def decode_with_spaces_cleaned_up(token_ids):
    """Takes back a space that it gave, when a later token comes: the whole is not the sum of its parts."""
    return decode_pieces(token_ids).replace(" ab. a", "ab").replace(". .", "..")


def decode_runs_of_bytes(token_ids):
    """As byte fallback does it: one broken byte spoils all the bytes beside it."""
    runs = groupby(token_ids, key=lambda token: token >= 0x80)
    return "".join(_run(bytes(run), high) for high, run in runs)


def _run(run, high):
    try:
        return run.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(run) if high else run.decode("ascii")


def completion(request, tokens, decode, *, settled=None, ends=(END,)):
    ending = Ending(request.params, ends, decode)
    ending.reached(tokens)
    return completion_of(
        "a", request, prompt_ids=(65, 66), tokens=tokens, ending=ending, decode=decode, settled=settled
    )


def settled_of(request, decode, ends=(END,)):
    return settled_text(request, (65, 66), Ending(request.params, ends, decode), decode)


def until_over(request, tokens, decode, ends=(END,)):
    """The tokens up to where an engine stops."""
    ending = Ending(request.params, ends, decode)
    for count in range(1, len(tokens) + 1):
        if ending.reached(tokens[:count]):
            return tokens[:count]
    return tokens


STOPS = st.lists(st.text(alphabet="ab. 日", min_size=1, max_size=5), max_size=3)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(8, 40),
    min_tokens=st.integers(0, 8),
    stop=STOPS,
    include_stop_str_in_output=st.booleans(),
    stop_token_ids=st.sampled_from([(), (3, ord("b"))]),
    ignore_eos=st.booleans(),
    echo=st.booleans(),
)
DECODERS = {
    "bytes": (decode_bytes, TEXT.map(lambda text: tuple(text.encode()))),
    "pieces": (decode_pieces, st.lists(st.integers(0, 7), max_size=24).map(tuple)),
}
ODD = {
    "broken bytes": (decode_bytes, st.binary(max_size=24).map(tuple)),
    "runs of bytes": (decode_runs_of_bytes, st.lists(st.sampled_from([*"日🙂".encode(), 97]), max_size=24).map(tuple)),
    "cleaned up": (decode_with_spaces_cleaned_up, st.lists(st.integers(0, 7), max_size=24).map(tuple)),
}


@pytest.mark.parametrize("name", [*DECODERS, *ODD])
@given(data=st.data(), params=PARAMS)
def test_whatever_was_said_at_any_time_the_text_begins_with_it(name, data, params):
    decode, all_tokens = (DECODERS | ODD)[name]
    request = Request(params=params, prompt="Why? ", stream=True)
    tokens = until_over(request, data.draw(all_tokens), decode)
    looks = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    settled = settled_of(request, decode)
    said = [settled.push(tokens[:count]) for count in looks]
    text = completion(request, tokens, decode, settled=settled).text
    assert all(text.startswith(part) for part in said)
    assert said == sorted(said, key=len)
    # Another worker looks at other times, or only at the end.
    assert completion(request, tokens, decode, settled=settled_of(request, decode)).text == text


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data(), params=PARAMS)
def test_a_text_that_streams_is_the_same_as_one_that_does_not(name, data, params):
    decode, all_tokens = DECODERS[name]
    request = Request(params=params, prompt="Why? ", stream=True)
    tokens = until_over(request, data.draw(all_tokens), decode)
    plain = completion(request, tokens, decode)
    assert completion(request, tokens, decode, settled=settled_of(request, decode)) == plain


def said(text, **params):
    """The text so far after each byte of `text`."""
    request = Request(params=SamplingParams(**{"max_tokens": 100} | params), prompt="Why? ", stream=True)
    settled = settled_of(request, decode_bytes)
    tokens = tuple(text.encode())
    return [settled.push(tokens[: count + 1]) for count in range(len(tokens))]


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("aé.", {}, ["a", "a", "aé", "aé."]),
        ("a\nx", {"stop": ("\nUser:", "END")}, ["a", "a", "a\nx"]),
        ("a\nU:", {"stop": ("\nUser:",)}, ["a", "a", "a", "a\nU:"]),
        ("a--b", {"stop": ("--b",)}, ["a", "a", "a", "a"]),
        ("a--b", {"stop": ("--b",), "include_stop_str_in_output": True}, ["a", "a-", "a--", "a--b"]),
        ("a.bc", {"stop": (".",), "min_tokens": 3}, ["a", "a.", "a.b", "a.bc"]),
        ("ab#c", {}, ["a", "ab", "ab", "ab"]),
        ("ab#", {"include_stop_str_in_output": True}, ["a", "ab", "ab#"]),
        ("a#b", {"min_tokens": 2}, ["a", "a#", "a#b"]),
        ("abc", {"max_tokens": 2}, ["a", "ab", "ab"]),
        ("ab", {"echo": True}, ["Why? a", "Why? ab"]),
    ],
)
def test_what_may_still_change_is_held_back_and_no_more(text, params, expected):
    assert said(text, **params) == expected


def test_each_token_is_decoded_a_few_times_and_not_all_of_them_each_time():
    sizes = []

    def decode(token_ids):
        sizes.append(len(token_ids))
        return decode_pieces(token_ids)

    request = Request(params=SamplingParams(max_tokens=1000), prompt="x", stream=True)
    settled = settled_of(request, decode)
    for count in range(1, 501):
        settled.push((1,) * count)
    assert sum(sizes) < 500 * 5


def test_one_that_does_not_stream_has_none():
    request = Request(params=SamplingParams(), prompt="x")
    assert settled_of(request, decode_bytes) is None


def test_a_tokenizer_that_takes_text_back_has_the_text_that_was_said_and_all_of_the_rest():
    request = Request(params=SamplingParams(max_tokens=3, stop=("ax",)), prompt="x", stream=True)
    settled = settled_of(request, decode_with_spaces_cleaned_up)
    assert settled.push((3, 5)) == " ab. "
    made = completion(request, (3, 5, 1), decode_with_spaces_cleaned_up, settled=settled)
    assert made.text == " ab. a", "not 'ab', as all tokens together read"
