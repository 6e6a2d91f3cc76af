from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.deltas import TextDelta
from broker.messages import FinishReason, Output, failed_output
from driver.deltas import Delta, TextMerge


def piece(offset, text, index=0):
    return TextDelta(index=index, offset=offset, text=text)


def output(text, index=0):
    return Output(index=index, text=text, finish_reason=FinishReason.STOP)


def given_text(items):
    """What a reader prints who appends, and what one has who goes by the offsets."""
    merge, appended, exact = TextMerge(), "", ""
    for item in items:
        if (delta := merge.add(item)) is not None:
            appended += delta.text
            exact = exact[: delta.offset] + delta.text
    return appended, exact


TEXT = st.text(alphabet="ab🙂", max_size=30)


@st.composite
def anything_that_may_come(draw):
    """A text, and pieces of it: doubled, late, overlapping, out of order, some missing; then its output, and more."""
    text = draw(TEXT)
    place = st.integers(0, len(text))
    borders = draw(st.lists(st.tuples(place, place), max_size=12))
    pieces = [piece(min(pair), text[min(pair) : max(pair)]) for pair in borders]
    end = draw(st.integers(0, len(pieces)))
    return text, [*pieces[:end], output(text), *pieces[end:]]


@given(anything_that_may_come())
def test_every_character_is_given_once(what):
    text, items = what
    assert given_text(items) == (text, text)


@given(st.data(), TEXT)
def test_what_comes_in_order_is_given_at_once(data, text):
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text))))})
    pieces = [piece(start, text[start:end]) for start, end in pairwise(borders)]
    again = data.draw(st.sampled_from([1, 2]))
    merge = TextMerge()
    deltas = [merge.add(item) for item in pieces for _ in range(again)]
    assert [delta.text for delta in deltas if delta] == [item.text for item in pieces]
    assert merge.add(output(text)) == Delta(index=0, offset=len(text), output=output(text))


@given(st.data(), TEXT, TEXT)
def test_offsets_lead_to_the_outputs_text_whatever_was_said_before(data, one, other):
    texts = (one, other)
    items = [
        piece(start, text[start : start + 5])
        for text, start in data.draw(st.lists(st.tuples(st.sampled_from(texts), st.integers(0, 30)), max_size=12))
    ]
    appended, exact = given_text([*items, output(one)])
    assert exact == one
    if one.startswith(other) and other:
        assert appended == one


def test_a_text_that_comes_otherwise_is_not_mixed_with_the_first():
    merge = TextMerge()
    said = [
        merge.add(item)
        for item in (
            piece(0, "one two"),
            piece(0, "one t"),  # another worker begins again
            piece(5, "hree"),  # and says something else
            piece(7, "ee four"),
        )
    ]
    assert [delta and delta.text for delta in said] == ["one two", None, None, None]
    assert merge.add(output("one three four")) == Delta(
        index=0, offset=5, text="hree four", output=output("one three four")
    )


def test_another_worker_that_begins_again_fills_a_gap():
    merge = TextMerge()
    assert merge.add(piece(0, "ab")).text == "ab"
    assert merge.add(piece(4, "ef")) is None
    assert merge.add(piece(0, "abcd")) == Delta(index=0, offset=2, text="cd")
    assert merge.add(piece(4, "ef")).text == "ef"


def test_requests_do_not_disturb_each_other():
    merge = TextMerge()
    assert merge.add(piece(0, "a")).index == 0
    assert merge.add(piece(0, "b", index=7)) == Delta(index=7, text="b")
    assert merge.add(output("b", index=7)).output.index == 7
    assert merge.add(piece(1, "c")) == Delta(index=0, offset=1, text="c")


@pytest.mark.parametrize("said", ["", "abc"])
def test_a_failed_request_ends_with_its_error(said):
    failed = failed_output(0, "worker_crash", "its worker died 3 times")
    merge = TextMerge()
    merge.add(piece(0, said))
    assert merge.add(failed) == Delta(index=0, output=failed)


def test_nothing_is_said_of_a_request_that_is_over():
    merge = TextMerge()
    merge.add(output("ab"))
    assert merge.add(piece(0, "abc")) is None
    assert merge.add(output("ab")) is None
