import pytest

from broker.messages import Request, SamplingParams
from gpu_worker.engine.choices import join_tokens, single_requests, split_tokens


def parts(**params):
    return single_requests(Request(params=SamplingParams(**params), prompt="x"))


def test_each_text_is_a_request_for_one_with_a_seed_of_its_own():
    single = parts(n=5, seed=7, top_k=3)
    assert [part.params.n for part in single] == [1] * 5
    assert [part.params.top_k for part in single] == [3] * 5
    assert single[0].params.seed == 7
    assert len({part.params.seed for part in single}) == 5
    assert single == parts(n=5, seed=7, top_k=3)
    assert single[:2] == parts(n=2, seed=7, top_k=3)


def test_extreme_seeds_have_derived_ones_too():
    for seed in (-(2**63), 2**63 - 1):
        assert len({part.params.seed for part in parts(n=3, seed=seed)}) == 3


def test_without_a_seed_there_is_none():
    assert [part.params.seed for part in parts(n=2)] == [None, None]


@pytest.mark.parametrize("texts", [[(1, 2), (3,)], [(), (), ()], [(1,)], [(), (0, 5)]])
def test_a_checkpoint_is_split_as_it_was_joined(texts):
    assert split_tokens(join_tokens(texts), len(texts)) == texts


def test_the_checkpoint_of_one_text_is_its_tokens():
    assert join_tokens([(4, 5)]) == (4, 5)


@pytest.mark.parametrize("checkpoint", [(), (1, 2), (1, -1, 2)])
def test_a_checkpoint_of_another_number_of_texts_is_nothing(checkpoint):
    assert split_tokens(checkpoint, 3) == [(), (), ()]
