import copy

import pytest
import torch

from gpu_worker.engine.shaping import ScoreShaper, Shaping

PROMPT = (1, 2, 2)
TEXT = [3, 1, 3]


def scores():
    return torch.tensor([0.5, -1.0, 2.0, 4.0, -3.0, 0.0])


def shaped(shaping, text=TEXT, prompt=PROMPT):
    shaper, out = ScoreShaper(shaping, prompt), scores()
    shaper.follow(len(text), lambda start: text[start:])
    shaper.shape(out)
    return out


def test_the_repetition_penalty_is_that_of_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[*PROMPT, *TEXT]]), scores()[None])[0]
    assert torch.equal(shaped(Shaping(repetition_penalty=1.3)), expected)


def test_presence_counts_once_and_frequency_each_time_and_the_prompt_not():
    assert torch.equal(scores() - shaped(Shaping(presence_penalty=0.5)), torch.tensor([0, 0.5, 0, 0.5, 0, 0]))
    assert torch.equal(scores() - shaped(Shaping(frequency_penalty=0.5)), torch.tensor([0, 0.5, 0, 1.0, 0, 0]))


def test_a_bias_is_added():
    assert torch.equal(
        shaped(Shaping(logit_bias=((0, -100.0), (4, 7.5)))) - scores(), torch.tensor([-100.0, 0, 0, 0, 7.5, 0])
    )


@pytest.mark.parametrize(("min_tokens", "held"), [(4, True), (3, False)])
def test_end_tokens_are_held_back_until_there_are_enough(min_tokens, held):
    out = shaped(Shaping(min_tokens=min_tokens, held_back=(0, 5)))
    assert out[[0, 5]].isneginf().all() == held
    assert torch.equal(out[1:5], scores()[1:5])


def test_biases_come_before_penalties():
    out = shaped(Shaping(logit_bias=((3, -5.0),), repetition_penalty=2.0, presence_penalty=1.0))
    assert out[3] == (4.0 - 5.0) * 2 - 1


def test_tokens_are_counted_once_however_they_come():
    shaping = Shaping(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    shaper = ScoreShaper(shaping, PROMPT)
    for place in range(len(TEXT) + 1):
        shaper.follow(place, lambda start, end=place: TEXT[start:end])
        out = scores()
        shaper.shape(out)
        assert torch.equal(out, shaped(shaping, TEXT[:place]))


def test_a_text_that_lost_its_last_token_is_counted_anew():
    shaping = Shaping(frequency_penalty=1.0)
    shaper = ScoreShaper(shaping, PROMPT)
    shaper.follow(3, lambda start: TEXT[start:])
    shaper.shape(scores())
    shaper.follow(2, lambda start: [3, 1][start:])
    out = scores()
    shaper.shape(out)
    assert torch.equal(out, shaped(shaping, [3, 1]))


def test_a_copy_of_the_request_has_the_same_counts():
    shaper = ScoreShaper(Shaping(), PROMPT)
    assert copy.deepcopy({"x": shaper})["x"] is shaper


@pytest.mark.parametrize(
    ("shaping", "neutral"),
    [
        (Shaping(), True),
        (Shaping(held_back=(2,)), True),
        (Shaping(min_tokens=3), True),
        (Shaping(min_tokens=3, held_back=(2,)), False),
        (Shaping(repetition_penalty=0.9), False),
        (Shaping(presence_penalty=-1), False),
        (Shaping(logit_bias=((1, 1.0),)), False),
    ],
)
def test_what_changes_nothing_is_neutral(shaping, neutral):
    assert shaping.neutral == neutral
