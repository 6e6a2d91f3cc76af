"""An allocator that fails, simulated around a model's forward pass: nothing is lost, and the limits learn."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import msgspec
import pytest
import torch

from broker.messages import Request, SamplingParams
from gpu_worker.engine import continuous
from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.engine.loop_options import default_options
from gpu_worker.engine.transformers import TransformersEngine
from tests.support.tiny_model import tiny_model
from tests.support.waiting import wait_until

CUDA_OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


class Memory:
    """Makes the forward pass fail where a step holds too much."""

    def __init__(self, monkeypatch, model):
        self.error = CUDA_OOM
        self.rows = self.tokens = 10**9  # what fits into a step
        self.longest = 10**9  # the longest text that fits, whatever the step
        self.failures = 0
        self.largest = 0  # rows of a step that went well
        forward = model.forward

        def limited(*args, **kwargs):
            rows, tokens = kwargs["cu_seq_lens_q"].diff().count_nonzero(), kwargs["input_ids"].shape[-1]
            if rows > self.rows or tokens > self.tokens or kwargs["position_ids"].max() >= self.longest:
                self.failures += 1
                raise self.error
            self.largest = max(self.largest, int(rows))
            return forward(*args, **kwargs)

        monkeypatch.setattr(model, "forward", limited)


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def memory(model, monkeypatch):
    return Memory(monkeypatch, model.model)


@pytest.fixture
def engine(model, memory):
    options = msgspec.structs.replace(default_options(model.model), quiet_steps=6)
    made = TransformersEngine(model.model, model.tokenizer, options=options)
    yield made
    made.close()


def ids(length, start=0):
    return tuple((start * 37 + place * 61) % 251 for place in range(length))


def request(length, start=0, max_tokens=6):
    return Request(params=SamplingParams(max_tokens=max_tokens, temperature=0.0), input_ids=ids(length, start))


MIXED = tuple(request(length, start) for start, length in enumerate((3, 40, 9, 90, 20, 5, 60, 12)))


def submit(engine, *requests):
    for index, item in enumerate(requests):
        engine.submit(str(index), item)


def finish(engine, count):
    done = {}
    while len(done) < count:
        done |= {completion.request_id: completion for completion in engine.step(1.0)}
    return [done[key] for key in sorted(done, key=int)]


def tokens(completions):
    assert [completion.error for completion in completions] == [None] * len(completions)
    return [completion.token_ids for completion in completions]


@pytest.fixture(scope="module")
def undisturbed():
    own = tiny_model()
    made = TransformersEngine(own.model, own.tokenizer)
    submit(made, *MIXED)
    done = tokens(finish(made, len(MIXED)))
    made.close()
    return done


@pytest.mark.parametrize("error", [CUDA_OOM, CUBLAS, MemoryError()], ids=["cuda", "cublas", "host"])
def test_too_many_rows_shrink_the_slots_and_every_answer_is_as_ever(engine, memory, undisturbed, error):
    memory.error, memory.rows = error, 3
    before = engine.capacity
    submit(engine, *MIXED)
    assert tokens(finish(engine, len(MIXED))) == undisturbed
    assert 1 <= memory.failures <= 6
    assert memory.largest == 3
    assert engine.capacity.slots < before.slots
    assert engine.capacity.kv_tokens == before.kv_tokens


def test_too_many_tokens_make_the_steps_smaller(engine, memory, undisturbed):
    memory.tokens = 40
    submit(engine, *MIXED)
    assert tokens(finish(engine, len(MIXED))) == undisturbed
    assert 1 <= memory.failures <= 6


def test_the_slots_grow_again_and_what_failed_is_remembered(engine, memory):
    memory.rows = 4
    submit(engine, *(request(4, start, 3) for start in range(8)))
    finish(engine, 8)
    shrunk, failures = engine.capacity.slots, memory.failures
    submit(engine, request(4, max_tokens=40))
    finish(engine, 1)
    grown = engine.capacity.slots
    assert shrunk < grown < 64
    memory.rows, memory.largest = 10**9, 0
    submit(engine, *(request(4, start, 40) for start in range(8)))
    finish(engine, 8)
    assert shrunk < memory.largest < 8
    assert memory.failures == failures


def test_one_that_does_not_fit_alone_fails_alone(engine, memory, undisturbed):
    before, memory.longest = engine.capacity, 120
    submit(engine, *MIXED[:4], request(130, 99), *MIXED[4:])
    done = finish(engine, len(MIXED) + 1)
    giant = done.pop(4)
    assert giant.error.code == "out_of_memory"
    assert "shorter prompt" in giant.error.message
    assert tokens(done) == undisturbed
    assert memory.failures <= 8
    assert engine.capacity == before  # its failure says nothing of the others


def test_a_text_that_grows_too_long_keeps_nobody(engine, memory, undisturbed):
    memory.longest = 100
    submit(engine, *MIXED, request(90, 99, 30))
    done = finish(engine, len(MIXED) + 1)
    assert done.pop().error.code == "out_of_memory"
    assert tokens(done) == undisturbed


def test_an_error_that_poisons_the_device_is_the_end(engine, memory):
    memory.error, memory.rows = RuntimeError("CUDA error: an illegal memory access was encountered"), 0
    submit(engine, MIXED[0])
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        finish(engine, 1)
    assert memory.failures == 1


class Cache:
    """Makes a KV cache of more blocks than `blocks` fail to be allocated."""

    def __init__(self, monkeypatch):
        self.blocks = 10**9
        self.asked = []
        self.go_on = Event()
        self.go_on.set()
        create = continuous.ContinuousBatchingManager._create_batch_processor

        def limited(manager):
            blocks = manager.continuous_batching_config.num_blocks
            self.asked.append(blocks)
            self.go_on.wait(60)
            if blocks > self.blocks:
                raise CUDA_OOM
            return create(manager)

        monkeypatch.setattr(continuous.ContinuousBatchingManager, "_create_batch_processor", limited)


@pytest.fixture
def cache(monkeypatch):
    return Cache(monkeypatch)


def test_a_cache_that_does_not_fit_is_made_smaller(cache, engine, model, undisturbed):
    assert cache.asked[0] == 256
    engine.close()
    cache.blocks, cache.asked[:] = 100, []
    made = TransformersEngine(model.model, model.tokenizer)
    assert made.capacity.kv_tokens == 64 * 32
    submit(made, *MIXED)
    assert tokens(finish(made, len(MIXED))) == undisturbed
    made.close()
    assert cache.asked[:3] == [256, 128, 64]


def test_no_cache_at_all_is_the_end(cache, model):
    cache.blocks = 0
    with pytest.raises(EngineDeadError, match="out of memory"):
        TransformersEngine(model.model, model.tokenizer)


def test_a_smaller_cache_refuses_what_it_cannot_hold_and_grows_when_idle(cache, engine, memory):
    context = engine.capacity.context_tokens
    memory.rows, cache.blocks = 1, 16
    submit(engine, request(3, max_tokens=700), request(3), request(3, 1))
    done = finish(engine, 3)
    assert done[0].error.code == "out_of_memory"
    assert [completion.error for completion in done[1:]] == [None, None]
    assert engine.capacity.kv_tokens < 700 < context
    submit(engine, request(3, max_tokens=700))
    assert finish(engine, 1)[0].error.code == "out_of_memory"
    cache.blocks, small = 10**9, engine.capacity.kv_tokens
    submit(engine, request(3, max_tokens=30))
    finish(engine, 1)
    while engine.capacity.kv_tokens <= small:
        engine.step(0.0)
    submit(engine, request(3))
    assert finish(engine, 1)[0].error is None


def test_while_a_loop_is_made_anew_the_heartbeat_need_not_wait(cache, engine, memory):
    memory.rows = 3
    submit(engine, *MIXED)
    assert engine.load.running + engine.load.waiting == len(MIXED)  # as the last beat saw it
    cache.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        done = pool.submit(finish, engine, len(MIXED))
        try:
            wait_until(lambda: len(cache.asked) > 1)
            load = pool.submit(lambda: engine.load).result(60)
        finally:
            cache.go_on.set()
        assert load.running + load.waiting == len(MIXED)
        assert tokens(done.result(60))
    assert engine.load.running + engine.load.waiting == 0


def test_the_warm_up_measures_and_finds_the_safe_number_of_slots(memory, model):
    memory.rows = 12
    made = TransformersEngine(model.model, model.tokenizer, measure_s=60.0)
    assert made.capacity.decode_tokens_per_s == 0
    made.warm_up()
    capacity = made.capacity
    assert capacity.prefill_tokens_per_s > 0
    assert capacity.decode_tokens_per_s > 0
    assert made.load.running == made.load.waiting == 0
    assert memory.failures
    assert capacity.slots <= 12
    made.close()
