from types import SimpleNamespace

import msgspec
import pytest
import torch

from gpu_worker.engine.picking import draw, pick_tokens
from gpu_worker.engine.rows import GREEDY, LogprobRecord, RowSampling
from gpu_worker.engine.sampling import PerRequestSampling
from gpu_worker.engine.shaping import ScoreShaper, Shaping

VOCABULARY = 50


def picked(scores, *, temperature=1.0, top_p=1.0, top_k=0, draws, **how):
    rows = len(draws)
    return pick_tokens(
        scores.expand(rows, -1),
        temperature=torch.full((rows,), temperature),
        top_p=torch.full((rows,), top_p),
        top_k=torch.full((rows,), top_k, dtype=torch.int32),
        draws=torch.tensor(draws, dtype=torch.int32),
        **how,
    )


def reference(scores, *, temperature=1.0, top_p=1.0, top_k=0):
    """The probabilities that transformers' own warpers would sample from."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(temperature)(None, scores[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return torch.softmax(scores[0], -1)


def random_scores(seed=0, size=VOCABULARY):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


CASES = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 5},
    {"top_p": 0.8},
    {"top_p": 0.6, "top_k": 10, "temperature": 1.3},
    {"top_k": 1},
    {"top_p": 1e-6},
    {"top_k": 1000},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tokens_are_distributed_as_by_the_reference(case):
    scores, count = random_scores(), 20_000
    tokens = picked(scores, draws=[draw(7, place) for place in range(count)], **case)
    seen = torch.bincount(tokens, minlength=VOCABULARY) / count
    expected = reference(scores, **case)
    assert torch.all(seen[expected == 0] == 0)
    # Five standard deviations of a binomial; the seed is fixed.
    assert torch.all((seen - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt() + 1e-9)


def test_extreme_draws_stay_within_the_kept_tokens():
    scores = torch.tensor([-50.0, 1.0, 2.0, -torch.inf])
    assert picked(scores, top_k=2, draws=[0, 2**31 - 1]).tolist() == [1, 2]


def test_a_tiny_temperature_is_the_greatest_score():
    scores = random_scores()
    tokens = picked(scores, temperature=1e-30, draws=[draw(1, i) for i in range(50)])
    assert set(tokens.tolist()) == {int(scores.argmax())}


def test_without_filters_the_sort_changes_nothing():
    draws = [draw(3, i) for i in range(500)]
    scores = random_scores(size=5000)
    assert torch.equal(picked(scores, draws=draws), picked(scores, draws=draws, filtered=False))


@pytest.mark.parametrize("case", [*CASES, {"top_p": 0.999}, {"top_k": 1500, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 50.0])
def test_the_head_of_the_vocabulary_gives_what_the_whole_would(case, temperature):
    scores, draws = random_scores(size=3000), [draw(3, i) for i in range(20)]
    case = case | {"temperature": temperature, "draws": draws}
    assert torch.equal(picked(scores, **case), picked(scores, eager=False, **case))


def test_draws_depend_on_seed_and_position_and_nothing_else():
    assert draw(5, 17) == draw(5, 17)
    values = {draw(seed, at) for seed in (-(2**63), -1, 0, 1, 2**63 - 1) for at in range(200)}
    assert len(values) == 1000
    assert all(0 <= value < 2**31 for value in values)


def request(position, sampling=None, *, has_new_token=True):
    kwargs = {} if sampling is None else {"sampling": sampling}
    state = SimpleNamespace(position_offset=position, logit_processor_kwargs=kwargs, request_id="x#1")
    return SimpleNamespace(state=state, has_new_token=has_new_token, query_length=1)


def processed(requests, scores, *, eager):
    processors = PerRequestSampling(eager=eager)
    table = torch.empty((processors.tensors_required, len(scores) + 4), dtype=torch.int32)
    processors.fill_defaults(table[:, :1])
    table[:] = table[:, :1].clone()
    processors.prepare_tensor_args(requests, table)
    return processors, processors(torch.empty(0), scores, table[:, : len(scores)])


SAMPLED = RowSampling(temperature=0.9, top_p=0.9, top_k=20, seed=11)
PLAIN = RowSampling(temperature=1.1, top_p=1.0, top_k=0, seed=12)


@pytest.mark.parametrize("eager", [True, False])
def test_greedy_rows_are_not_touched(eager):
    scores = torch.stack([random_scores(seed) for seed in range(4)])
    requests = [request(3, GREEDY), request(4, SAMPLED), request(5), request(6, PLAIN)]
    _, out = processed(requests, scores.clone(), eager=eager)
    assert torch.equal(out[[0, 2]], scores[[0, 2]])


def test_all_greedy_costs_nothing():
    scores = random_scores()[None]
    _, out = processed([request(3, GREEDY)], scores, eager=True)
    assert out is scores


@pytest.mark.parametrize("eager", [True, False])
def test_a_row_is_sampled_alike_alone_and_in_company(eager):
    scores = torch.stack([random_scores(seed) for seed in range(5)])
    company = [request(3, GREEDY), request(40, SAMPLED), request(5, PLAIN), request(9, PLAIN), request(7)]
    _, together = processed(company, scores.clone(), eager=eager)
    for row in (1, 2, 3):
        _, alone = processed([company[row]], scores[row : row + 1].clone(), eager=True)
        assert alone.argmax() == together[row].argmax()


def test_requests_still_reading_their_prompt_have_no_row():
    scores = torch.stack([random_scores(0)])
    requests = [request(3, PLAIN, has_new_token=False), request(8, SAMPLED)]
    processors, out = processed(requests, scores.clone(), eager=True)
    _, alone = processed([request(8, SAMPLED)], scores.clone(), eager=True)
    assert torch.equal(out, alone)
    assert (processors.steps, processors.tokens) == (1, 1)


def test_padding_rows_are_greedy():
    scores = torch.stack([random_scores(seed) for seed in range(3)])
    _, out = processed([request(3, SAMPLED)], scores.clone(), eager=False)
    assert torch.equal(out[1:], scores[1:])


def special(prompt, text, *, initial=None, base=GREEDY, **fields):
    """A request whose first tokens are in `initial`, as after a resumption; all its tokens are prompt and text."""
    whole = [*prompt, *text]
    initial = len(prompt) if initial is None else initial
    item = request(len(whole), msgspec.structs.replace(base, prompt_tokens=len(prompt), **fields))
    item.state.initial_tokens, item.state.generated_tokens = whole[:initial], whole[initial:]
    return item


def shaper(prompt, **wishes):
    return ScoreShaper(Shaping(**wishes), prompt)


def test_neighbours_of_a_special_row_are_not_touched():
    scores = torch.stack([random_scores(seed) for seed in range(3)])
    before = scores.clone()
    wishes = shaper([1], logit_bias=((7, 50.0),))
    row = special([1], [2], shaper=wishes, record=LogprobRecord(0))
    _, out = processed([request(3, GREEDY), row, request(4, GREEDY)], scores, eager=True)
    assert torch.equal(out[[0, 2]], before[[0, 2]])
    assert out[1].argmax() == 7
    assert torch.equal(scores, before)  # the library's own tensor too


@pytest.mark.parametrize("initial", [2, 3, 5])
def test_what_is_prompt_and_what_is_text_survives_a_resumption(initial):
    scores = random_scores()[None]
    wishes = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    prompt, text = [4, 5], [6, 6, 7]
    _, out = processed([special(prompt, text, initial=initial, shaper=shaper(prompt, **wishes))], scores, eager=True)
    expected = scores[0].clone()
    plain = shaper(prompt, **wishes)
    plain.follow(3, lambda start: text[start:])
    plain.shape(expected)
    assert torch.equal(out[0], expected)


def test_a_shaped_row_is_sampled_from_its_shaped_scores():
    scores = random_scores()[None]
    row = special([1], [], base=SAMPLED, shaper=shaper([1], logit_bias=((9, 100.0),)))
    _, out = processed([row], scores, eager=True)
    assert out.argmax() == 9


def test_a_forced_token_wins_and_its_log_probability_is_the_models():
    scores, record = random_scores()[None], LogprobRecord(3)
    record.put(0, (8, -1.0), ())
    bias = shaper([1], logit_bias=((9, 100.0),))
    row = special([1], [8], base=SAMPLED, forced=(8, 5), record=record, shaper=bias)
    _, out = processed([row], scores, eager=True)
    assert out.argmax() == 5
    expected = scores[0].log_softmax(-1)
    (token, logprob), likeliest = record.entries[1]
    assert (token, logprob) == (5, pytest.approx(expected[5].item()))
    best = expected.topk(3)
    assert likeliest == tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def test_a_place_that_is_noted_again_is_replaced():
    record = LogprobRecord(0)
    for place, token in ((0, 1), (1, 2), (1, 3)):
        record.put(place, (token, 0.0), ())
    assert [token for (token, _), _ in record.entries] == [1, 3]


def test_special_rows_never_reach_a_loop_with_graphs():
    with pytest.raises(RuntimeError, match="CUDA graphs"):
        processed([special([1], [], record=LogprobRecord(0))], random_scores()[None], eager=False)
