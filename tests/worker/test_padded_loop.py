"""The loop for models over several GPUs: the same texts as plain `generate`, with accelerate's hooks in place."""

import threading

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, OPTConfig, OPTForCausalLM

from broker.errors import ConfigurationError
from broker.messages import Request, SamplingParams
from gpu_worker.engine import loading, padded_room, split
from gpu_worker.engine.base import Capacity
from gpu_worker.engine.catalog import make_transformers
from gpu_worker.engine.loading import LoadOptions, load_model
from gpu_worker.engine.loop_options import default_options
from gpu_worker.engine.padded_batch import input_device
from gpu_worker.engine.transformers import TransformersEngine
from gpu_worker.settings import WorkerSettings
from tests.support.spread import spread
from tests.support.tiny_model import save_tiny_model, tiny_model

LENGTHS = (1, 40, 9, 90, 20, 5, 60, 12, 33, 2, 71, 3, 120, 7, 15, 28)
CUDA_OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def made(model, tokenizer, **options):
    options = msgspec.structs.replace(default_options(model), padded=True, **options)
    return TransformersEngine(model, tokenizer, options=options)


@pytest.fixture
def tiny():
    return tiny_model()


@pytest.fixture
def engine(tiny):
    engine = made(spread(tiny.model), tiny.tokenizer, quiet_steps=6)
    yield engine
    engine.close()


def ids(length, start=0):
    return tuple((start * 37 + place * 61) % 251 for place in range(length))


def request(length, start=0, max_tokens=6, **params):
    params = {"max_tokens": max_tokens, "temperature": 0.0} | params
    return Request(params=SamplingParams(**params), input_ids=ids(length, start))


MIXED = tuple(request(length, place, 4 + place % 7) for place, length in enumerate(LENGTHS))


def finish(engine, count):
    done = {}
    while len(done) < count:
        done |= {completion.request_id: completion for completion in engine.step(1.0)}
    return [done[key] for key in sorted(done, key=int)]


def run(engine, *requests):
    for index, item in enumerate(requests):
        engine.submit(str(index), item)
    return finish(engine, len(requests))


def tokens(completions):
    assert [completion.error for completion in completions] == [None] * len(completions)
    return [completion.token_ids for completion in completions]


@pytest.fixture(scope="module")
def expected():
    return plain(tiny_model().model, MIXED)


def plain(model, requests):
    """Each alone, by the library's own `generate`."""
    texts = []
    for item in requests:
        prompt = torch.tensor([item.input_ids])
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=item.params.max_tokens
        )
        texts.append(tuple(made[0, prompt.size(1) :].tolist()))
    return texts


def test_texts_are_those_of_plain_generate_together_and_alone(engine, expected):
    assert tokens(run(engine, *MIXED)) == expected
    assert [tokens(run(engine, item))[0] for item in MIXED[:4]] == expected[:4]
    assert engine.load.kv_tokens_used == engine.memory().kv_cache_mib == 0


def test_requests_join_and_leave_those_that_run(tiny, expected):
    engine = made(spread(tiny.model), tiny.tokenizer, max_requests=4, max_batch_tokens=50)
    sizes = []
    tiny.model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].numel()), with_kwargs=True
    )
    got = tokens(run(engine, *MIXED))
    engine.close()
    assert got == expected
    assert 40 < max(sizes) <= 50  # the longest are read in chunks


def test_a_sliding_window_stays_one_across_joins():
    config = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8}
    config |= {"initializer_range": 0.4, "eos_token_id": None, "attn_implementation": "eager"}
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = Gemma2ForCausalLM(Gemma2Config(**config)).eval()
    assert "sliding_attention" in model.config.layer_types
    expected = plain(model, MIXED[:9])
    engine = made(model, tiny_model().tokenizer, max_requests=4)
    got = tokens(run(engine, *MIXED[:9]))
    engine.close()
    assert got == expected


def small_opt():
    config = {"vocab_size": 256, "hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2, "ffn_dim": 64}
    config |= {"num_attention_heads": 4, "max_position_embeddings": 512, "init_std": 0.4}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return OPTForCausalLM(OPTConfig(**config, eos_token_id=None, bos_token_id=None, pad_token_id=None)).eval()


def test_a_model_that_continuous_batching_does_not_run_is_run_in_padded_batches():
    expected = plain(small_opt(), MIXED[:6])
    engine = TransformersEngine(small_opt(), tiny_model().tokenizer)
    engine.warm_up()
    got = tokens(run(engine, *MIXED[:6]))
    engine.close()
    assert got == expected


def test_seeds_penalties_and_log_probabilities_are_as_in_the_default_engine(engine):
    wishes = [{"temperature": 0.9, "top_p": 0.9, "seed": place} for place in range(3)]
    wishes += [{"repetition_penalty": 1.3}, {"logprobs": 2}, {"logit_bias": ((7, 4.0),), "min_tokens": 3}]
    wishes += [{"temperature": 0.7, "seed": 9, "presence_penalty": 0.5, "logprobs": 1}]
    requests = [request(5 + place, place, 8, **wish) for place, wish in enumerate(wishes)]
    other = tiny_model()
    default = TransformersEngine(other.model, other.tokenizer)
    expected = run(default, *requests)
    default.close()
    got = run(engine, *MIXED[:3], *requests)[3:]
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.token_ids, mine.text) == (theirs.token_ids, theirs.text)
        scores = [[each.logprob for each in output.logprobs or ()] for output in (mine, theirs)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def limit_rows(monkeypatch, model, rows, longest=10**9, error=CUDA_OOM):
    """Makes the forward pass fail where a step holds more; returns the sizes of the failures."""
    failures, forward = [], model.forward

    def limited(*args, **kwargs):
        count, length = kwargs["attention_mask"].shape
        if count > rows or length > longest:
            failures.append(count)
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", limited)
    return failures


def test_memory_that_runs_out_makes_the_batch_smaller_and_loses_nothing(engine, tiny, monkeypatch, expected):
    before = engine.capacity.slots
    failures = limit_rows(monkeypatch, tiny.model, rows=3)
    assert tokens(run(engine, *MIXED)) == expected
    assert 1 <= len(failures) <= 8
    assert engine.capacity.slots < before


def test_one_that_does_not_fit_alone_fails_alone(engine, tiny, monkeypatch, expected):
    limit_rows(monkeypatch, tiny.model, rows=99, longest=180)
    done = run(engine, *MIXED[:5], request(200, 3), *MIXED[5:])
    assert done.pop(5).error.code == "out_of_memory"
    assert tokens(done) == expected


def test_one_that_breaks_the_loop_is_found(engine, tiny, monkeypatch, expected):
    limit_rows(monkeypatch, tiny.model, rows=99, longest=180, error=ValueError("a bad row"))
    done = run(engine, *MIXED[:4], request(200, 3))
    assert done.pop().error.code == "engine_error"
    assert tokens(done) == expected[:4]


def test_it_sleeps_wakes_and_resizes_with_requests_in_hand(engine):
    (expected,) = plain(tiny_model().model, [request(9, 2, 80)])
    engine.submit("0", request(9, 2, 80))
    while len(engine.generated("0")) < 3:
        engine.step(0.01)
    engine.sleep()
    so_far = engine.generated("0")
    assert engine.memory().kv_cache_mib == 0
    engine.wake()
    while len(engine.generated("0")) < len(so_far) + 3:
        engine.step(0.01)
    engine.resize(slots=2, kv_tokens=1024)
    assert engine.capacity == Capacity(slots=2, kv_tokens=1024, context_tokens=1024)
    assert tokens(finish(engine, 1)) == [expected]


def test_no_thread_is_left_after_close(tiny):
    engine = made(spread(tiny.model), tiny.tokenizer)
    run(engine, *MIXED[:2])
    engine.close()
    assert "padded-loop" not in {thread.name for thread in threading.enumerate()}


def test_inputs_go_to_the_first_device(tiny):
    assert input_device(tiny.model) == torch.device("cpu")
    tiny.model.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, "lm_head": 1}
    assert input_device(tiny.model) == torch.device("cuda:0")


def test_the_fullest_device_decides_how_large_the_cache_is(monkeypatch, tiny):
    free = {"cuda:0": 1000, "cuda:1": 400}
    monkeypatch.setattr(padded_room, "room_for_cache", free.__getitem__)
    options = msgspec.structs.replace(default_options(tiny.model), num_blocks=None, memory_share=0.5)
    assert padded_room.room_for_tokens(options, {"cuda:0": 10, "cuda:1": 10}) == 20
    assert padded_room.room_for_tokens(options, {"cuda:0": 50, "cuda:1": 10}) == 10
    with pytest.raises(RuntimeError, match="not enough memory"):
        padded_room.room_for_tokens(options.resized(kv_tokens=32), {"cuda:0": 10, "cuda:1": 10})


@pytest.fixture
def folder(tmp_path):
    return save_tiny_model(tmp_path / "tiny")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ((1000, 500)[index], 2000))


class Loaded:
    """Notes what `from_pretrained` was given, and gives the model that the layers' places are told of."""

    def __init__(self, monkeypatch, model, **places):
        self.given = {}
        model.hf_device_map = places
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", self)
        self.model = model

    def __call__(self, location, **given):
        self.given = given
        return self.model


def test_a_model_over_two_gpus_is_spread_over_both_and_nothing_else(folder, tiny, two_gpus, monkeypatch):
    loaded = Loaded(monkeypatch, tiny.model, first=0, second=1)
    monkeypatch.setattr("gpu_worker.engine.transformers.TransformersEngine", lambda *args, **how: (args, how))
    (model, _), how = make_transformers(WorkerSettings(model=str(folder), device="cuda:2,5", slots=3))
    assert model is tiny.model
    assert loaded.given["device_map"] == "auto"
    assert loaded.given["max_memory"] == {0: 900, 1: 450}
    assert loaded.given["dtype"] is torch.bfloat16
    assert (how["options"].padded, how["options"].max_requests) == (True, 3)


def test_one_gpu_is_as_ever(two_gpus):
    where = loading._place(torch.device("cuda:0"), LoadOptions())
    assert where == {"device_map": {"": torch.device("cuda:0")}}


@pytest.mark.parametrize("elsewhere", ["cpu", "disk"])
def test_a_model_that_is_too_large_for_the_group_is_refused(folder, tiny, two_gpus, tmp_path, monkeypatch, elsewhere):
    Loaded(monkeypatch, tiny.model, first=0, second=1, third=elsewhere)
    with pytest.raises(ConfigurationError, match=f"would be on {elsewhere}"):
        load_model(str(folder), cache_dir=tmp_path, device="cuda:0", how=LoadOptions(gpus=2))


def test_a_model_with_another_state_is_refused(tiny):
    tiny.model.hf_device_map = {"": 0}
    tiny.model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ConfigurationError, match="one GPU only"):
        split.require_spread(tiny.model)


def test_a_group_of_which_torch_sees_less_is_refused(two_gpus):
    with pytest.raises(ConfigurationError, match="torch sees 2"):
        split.spread_over(3)
