from hypothesis import example, given
from hypothesis import strategies as st

from broker.messages import FinishReason, Request, SamplingParams
from gpu_worker.engine.openai_events import Event
from gpu_worker.engine.openai_held import HeldCall
from gpu_worker.engine.openai_wire import Call

TEXTS = st.text("abc\ufffd", max_size=8)


def held(*stop, keep=False, seed=None, temperature=0.0):
    params = SamplingParams(
        max_tokens=9, stop=stop, include_stop_str_in_output=keep, temperature=temperature, seed=seed
    )
    request = Request(params=params, prompt="p", stream=True)
    return HeldCall(request_id="x", request=request, call=Call(path="", body={}), prompt_ids=(), cuts=True)


def told(call, pieces):
    """What is settled after each piece."""
    seen = []
    for piece in pieces:
        call.take(Event(text=piece))
        seen.append(call.settled())
    return seen


@example(["aba"], ["aba", "b"], False)
@given(st.lists(TEXTS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.booleans())
def test_in_whichever_pieces_a_text_comes_it_ends_the_same_and_none_of_it_is_taken_back(pieces, stop, keep):
    at_once, bit_by_bit, by_characters = (held(*stop, keep=keep) for _ in range(3))
    told(at_once, ["".join(pieces)])
    seen = told(bit_by_bit, pieces) + told(by_characters, "".join(pieces))
    final = at_once.completion().text
    assert bit_by_bit.completion().text == by_characters.completion().text == final
    assert all(final.startswith(text) for text in seen)


def test_a_stop_string_ends_it_and_may_stay():
    for keep, text in ((False, "one "), (True, "one END")):
        call = held("END", keep=keep)
        told(call, ["one EN", "D two"])
        assert (call.completion().text, call.completion().finish_reason) == (text, FinishReason.STOP)


def test_what_may_begin_a_stop_string_or_a_character_is_held_back():
    call = held("END")
    assert told(call, ["one E", "x", "\ufffd", "y"]) == ["one ", "one Ex", "one Ex", "one Ex\ufffdy"]


def test_one_that_chance_decides_shows_nothing_before_its_end():
    assert told(held(temperature=1.0), ["one"]) == [""]
    assert told(held(temperature=1.0, seed=3), ["one"]) == ["one"]


def test_begun_again_it_shows_no_less_than_before():
    call = held()
    told(call, ["one ", "two"])
    again = call.fresh()
    assert told(again, ["one"]) == ["one two"]
    assert told(again, [" two three"]) == ["one two three"]
