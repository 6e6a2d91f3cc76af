"""The engine's greedy tokens are those of transformers' own `generate`: 64 mixed prompts, alone and in company."""

from itertools import groupby

import pytest
import torch

from broker.chat import ChatMessage
from broker.messages import Request, SamplingParams
from gpu_worker.engine.transformers import TransformersEngine

pytestmark = pytest.mark.model

# Each of them is one token, so that prompts of as many words are equally long.
FIRST = ("The", "A", "In", "We", "This", "One", "It", "My")
TEXT = (
    "the river runs through a city of people who paint green light early each morning on stone under water and answer"
    " every garden with paper birds while old ships carry white salt from far islands to small towns in winter"
)
WORDS = TEXT.split()
# So many words, and so many prompts of them; few of the long ones, which cost most.
COMPLETIONS = {1: 6, 2: 6, 5: 6, 9: 6, 17: 4, 40: 2, 130: 1, 300: 1}
CHATS = {1: 8, 3: 8, 8: 6, 14: 4, 30: 3, 60: 2, 120: 1}
TIE = 1e-3  # of two scores: float32 sums in another order differ by less


def words(count, start):
    return " ".join((FIRST[start], *(WORDS[(9 * start + 7 * place) % len(WORDS)] for place in range(count - 1))))


def params(place):
    return SamplingParams(max_tokens=4 + place % 3, temperature=0.0)


def completion(count, start):
    return Request(params=params(start), prompt=words(count, start))


def chat(count, start):
    return Request(params=params(start), messages=(ChatMessage(role="user", content=words(count, start)),))


REQUESTS = (
    *(completion(count, start) for count, most in COMPLETIONS.items() for start in range(most)),
    *(chat(count, start) for count, most in CHATS.items() for start in range(most)),
)
ALONE = [0, 7, 13, 20, 25, 29, 30, 31, 33, 42, 49, 55, 59, 61, 63]  # one of each length


def prompt_ids(tokenizer, request):
    if not request.messages:
        return tokenizer(request.prompt)["input_ids"]
    turns = [{"role": turn.role, "content": turn.content} for turn in request.messages]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]


@pytest.fixture(scope="module")
def prompts(loaded_model):
    return [prompt_ids(loaded_model.tokenizer, request) for request in REQUESTS]


@pytest.fixture(scope="module")
def plain(loaded_model, prompts):
    """What `generate` gives. Prompts of one length go together, which needs no padding and saves time."""
    found = {}
    by_length = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for _, group in groupby(by_length, key=lambda place: len(prompts[place])):
        places = list(group)
        most = max(REQUESTS[place].params.max_tokens for place in places)
        inputs = torch.tensor([prompts[place] for place in places])
        with torch.inference_mode():
            rows = loaded_model.model.generate(
                input_ids=inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=most, do_sample=False
            )
        for place, row in zip(places, rows[:, inputs.shape[1] :].tolist(), strict=True):
            found[place] = cut(row, REQUESTS[place].params.max_tokens, loaded_model.tokenizer.eos_token_id)
    return [found[place] for place in range(len(prompts))]


def cut(tokens, most, end):
    """A row's own tokens: without what another row of its batch needed."""
    tokens = tokens[:most]
    return tuple(tokens[: tokens.index(end) + 1] if end in tokens else tokens)


@pytest.fixture(scope="module")
def engine(loaded_model, plain):
    made = TransformersEngine(loaded_model.model, loaded_model.tokenizer)
    yield made
    made.close()


def run(engine, places):
    for place in places:
        engine.submit(str(place), REQUESTS[place])
    done = {}
    while len(done) < len(places):
        done |= {int(completion.request_id): completion.token_ids for completion in engine.step(1.0)}
    return done


@pytest.fixture
def other_than_plain(loaded_model, prompts, plain):
    """Finds, among tokens by place, those that differ by more than a tie: (place, token's place, gap of the scores)."""

    def find(got):
        differing = [place for place, tokens in got.items() if tokens != plain[place]]
        gaps = [
            (place, *first_gap(loaded_model.model, prompts[place], plain[place], got[place])) for place in differing
        ]
        return [item for item in gaps if item[-1] > TIE]

    return find


def first_gap(model, prompt, expected, got):
    """Where two texts part, and how far apart the model's scores of their tokens are there."""
    at = next((i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return min(len(expected), len(got)), float("inf")  # one is shorter: no tie explains that
    with torch.inference_mode():
        scores = model(input_ids=torch.tensor([[*prompt, *expected[:at]]])).logits[0, -1]
    return at, float(scores[expected[at]] - scores[got[at]])


def test_the_prompts_are_as_mixed_as_they_should_be(prompts, plain):
    lengths = [len(prompt) for prompt in prompts]
    assert (len(lengths), min(lengths)) == (64, 1)
    assert 290 <= max(lengths) <= 320
    assert len({*map(tuple, prompts)}) == 64
    assert len({lengths[place] for place in ALONE}) == len(ALONE) == len(set(lengths))
    assert len(set(plain)) > 32


def test_in_company(engine, other_than_plain):
    assert other_than_plain(run(engine, range(len(REQUESTS)))) == []


def test_alone(engine, other_than_plain):
    got = {}
    for place in ALONE:
        got |= run(engine, [place])
    assert other_than_plain(got) == []


def test_a_difference_would_be_found(plain, other_than_plain):
    changed = (*plain[5][:-1], (plain[5][-1] + 1) % 49152)
    assert [place for place, _, _ in other_than_plain({4: plain[4], 5: changed, 6: plain[6][:-1]})] == [5, 6]
