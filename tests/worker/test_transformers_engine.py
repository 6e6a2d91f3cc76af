"""The default engine with the packaged model's first layers: sampling, a small cache, and a loop that may break."""

import copy
import threading

import msgspec
import pytest
import torch
from transformers.generation.continuous_batching.requests import RequestState

from broker.chat import ChatMessage
from broker.messages import Request, SamplingParams
from gpu_worker.engine.loop_options import default_options
from gpu_worker.engine.transformers import TransformersEngine

pytestmark = pytest.mark.model

WORDS = ("the", "river", "city", "people", "green", "light", "early", "stone", "water", "answer", "garden", "paper")
SIZES = (1, 5, 33, 64)


def greedy(prompt, max_tokens=12):
    return Request(params=SamplingParams(max_tokens=max_tokens, temperature=0.0), prompt=prompt)


def chat(text, max_tokens=12):
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Request(params=params, messages=(ChatMessage(role="user", content=text),))


def words(count, start=0):
    return " ".join(WORDS[(start + 7 * i) % len(WORDS)] for i in range(count))


MIXED = (
    *(greedy(words(size, size), 4 + size % 5) for size in SIZES),
    *(chat(words(size, size + 1), 4 + size % 5) for size in SIZES[:2]),
    chat("What is the capital of France?", 20),
    greedy("1, 2, 3, 4,", 16),
)


def finish(engine, count):
    done = {}
    while len(done) < count:
        done |= {completion.request_id: completion for completion in engine.step(1.0)}
    return done


def run(engine, *requests):
    for index, request in enumerate(requests):
        engine.submit(str(index), request)
    done = finish(engine, len(requests))
    return [done[str(index)] for index in range(len(requests))]


@pytest.fixture(scope="module")
def engine(small_model):
    made = TransformersEngine(small_model.model, small_model.tokenizer)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(small_model):
    """The tokens of transformers' own `generate` for each of `MIXED`, computed one by one."""
    return [generate(small_model, request) for request in MIXED]


def generate(loaded, request):
    tokenizer = loaded.tokenizer
    if request.messages:
        turns = [{"role": turn.role, "content": turn.content} for turn in request.messages]
        inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    else:
        inputs = tokenizer(request.prompt, return_tensors="pt")
    with torch.inference_mode():
        out = loaded.model.generate(**inputs, max_new_tokens=request.params.max_tokens, do_sample=False)
    return tuple(out[0, inputs["input_ids"].shape[1] :].tolist())


def sampled(seed=1, prompt="Once upon a time", **params):
    return Request(params=SamplingParams(**{"max_tokens": 12, "seed": seed} | params), prompt=prompt)


def test_a_seed_gives_the_same_text_whatever_the_company(engine):
    mine = [sampled(1), sampled(2, top_p=0.8, temperature=0.7), sampled(3, top_k=20)]
    alone = [run(engine, request)[0].token_ids for request in mine]
    others = [sampled(place, words(place + 1), max_tokens=2 + place % 7) for place in range(6)]
    together = run(engine, *others[:3], mine[0], *MIXED[:3], mine[1], *others[3:], mine[2])
    assert [together[3].token_ids, together[7].token_ids, together[-1].token_ids] == alone
    assert len(set(alone)) == 3


def test_without_a_seed_texts_differ(engine):
    one, two = run(engine, sampled(None), sampled(None))
    assert one.token_ids != two.token_ids


def test_temperature_is_each_request_s_own(engine, plain):
    cold = msgspec.structs.replace(MIXED[-1], params=sampled(9, temperature=1e-6, max_tokens=16).params)
    hot = msgspec.structs.replace(MIXED[-1], params=sampled(9, temperature=8.0, max_tokens=16).params)
    cold_output, hot_output, greedy_output = run(engine, cold, hot, MIXED[-1])
    assert cold_output.token_ids == greedy_output.token_ids == plain[-1]
    assert hot_output.token_ids != plain[-1]


def test_what_the_tokenizer_cannot_take_fails_alone(engine, plain):
    params = SamplingParams(max_tokens=4, temperature=0.0)
    bad, good = run(engine, Request(params=params, input_ids=(49152,)), MIXED[-1])
    assert bad.error.code == "invalid_request"
    assert "49151" in bad.error.message
    assert good.token_ids == plain[-1]


@pytest.fixture
def small_engine(second_model):
    """An engine whose whole KV cache has 256 tokens."""
    options = msgspec.structs.replace(default_options(second_model.model), num_blocks=8, max_batch_tokens=64)
    made = TransformersEngine(second_model.model, second_model.tokenizer, options=options)
    yield made
    made.close()


def test_what_outgrows_the_cache_is_refused(small_engine):
    assert small_engine.capacity.context_tokens == 256
    bad, good = run(small_engine, greedy("x", 257), greedy("x", 2))
    assert bad.error.code == "context_length_exceeded"
    assert good.error is None


def test_requests_that_push_each_other_out_of_the_cache_end_as_alone(small_engine, engine, monkeypatch):
    pushed_out = []
    restart = RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda state: pushed_out.append(state) or restart(state)
    )
    requests = [
        *(greedy(words(24, place), 14) for place in range(4)),
        *(sampled(place, words(24, place), max_tokens=14) for place in range(4)),
    ]
    crowded = [output.token_ids for output in run(small_engine, *requests)]
    assert pushed_out
    assert crowded == [output.token_ids for output in run(engine, *requests)]


def test_a_prompt_that_begins_like_an_earlier_one_is_found_in_the_cache(engine, small_model):
    page = default_options(small_model.model).page_size
    params = SamplingParams(max_tokens=2, temperature=0.0)
    first = tuple(range(500, 500 + 2 * page + 5))
    (one,) = run(engine, Request(params=params, input_ids=first))
    before = engine.load
    (again,) = run(engine, Request(params=params, input_ids=first))
    run(engine, Request(params=params, input_ids=(*first[: page + 1], 7, 8, 9)))
    run(engine, Request(params=params, input_ids=(7, *first)))
    after = engine.load
    assert after.prompt_tokens - before.prompt_tokens == len(first) + page + 4 + len(first) + 1
    assert after.cached_prompt_tokens - before.cached_prompt_tokens == 2 * page + page
    assert again.token_ids == one.token_ids


def test_the_use_of_the_cache_is_that_of_the_pages_in_use(small_engine):
    small_engine.submit("a", greedy(words(40), 80))
    while len(small_engine.generated("a")) < 2:
        small_engine.step(0.01)
    used = small_engine.load.kv_tokens_used
    assert 32 < used < 256
    assert used % 32 == 0


class Broken:
    """Makes the model's forward pass fail as long as a given token is in the batch, or a number of times."""

    def __init__(self, monkeypatch, model, *, token=None, times=10**6):
        self.failures = 0
        forward = model.forward

        def failing(*args, **kwargs):
            ids = kwargs["input_ids"]
            if self.failures < times and (token is None or bool((ids == token).any())):
                self.failures += 1
                raise RuntimeError("broken on purpose")
            return forward(*args, **kwargs)

        monkeypatch.setattr(model, "forward", failing)


def test_the_loop_comes_back_and_all_go_on(engine, plain, small_model, monkeypatch):
    Broken(monkeypatch, small_model.model, times=1)
    assert [output.token_ids for output in run(engine, *MIXED[:4])] == plain[:4]


def test_the_request_that_breaks_the_loop_fails_alone(engine, plain, small_model, monkeypatch):
    poison = 31337
    Broken(monkeypatch, small_model.model, token=poison)
    bad = Request(params=SamplingParams(max_tokens=4, temperature=0.0), input_ids=(5, poison))
    outputs = run(engine, *MIXED[:3], bad, *MIXED[3:5])
    assert outputs[3].error.code == "engine_error"
    assert "broken on purpose" in outputs[3].error.message
    assert [output.token_ids for output in outputs[:3] + outputs[4:]] == plain[:5]


def test_a_pass_beside_the_loop_sees_no_later_tokens_and_leaves_nothing_behind(engine, small_model):
    ids = torch.tensor([range(100, 140)])
    with torch.inference_mode():
        alone = small_model.model(ids).logits
        engine.submit("long", greedy("x", 400))
        while len(engine.generated("long")) < 2:
            engine.step(0.01)
        beside = [small_model.model(ids).logits for _ in range(10)]
        of_a_part = [small_model.model.model(ids).last_hidden_state for _ in range(10)]
    engine.cancel("long")
    assert all(torch.allclose(scores, alone, atol=1e-3) for scores in beside)
    for state in of_a_part:
        with torch.inference_mode():
            assert torch.allclose(small_model.model.lm_head(state), alone, atol=1e-3)
    assert getattr(small_model.model.config, "is_causal", True)


def test_a_model_that_is_served_can_be_copied(engine, small_model):
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.allclose(copy.deepcopy(small_model.model)(ids).logits, small_model.model(ids).logits, atol=1e-4)


def test_a_pass_that_fails_lets_the_next_one_in(engine, small_model):
    with pytest.raises(IndexError):
        small_model.model(torch.tensor([[10**6]]))
    (output,) = run(engine, greedy("x", 2))
    assert output.error is None


def test_close_ends_every_thread_and_wakes_step(second_model):
    before = set(threading.enumerate())
    made = TransformersEngine(second_model.model, second_model.tokenizer)
    made.submit("long", greedy("x", 2000))
    stepping = threading.Thread(target=made.step, args=(60.0,))
    stepping.start()
    made.close()
    made.close()
    stepping.join(30)
    assert set(threading.enumerate()) <= before  # of which those of another test may have ended
    assert made.load.running == 0
    assert made.step(0.0) == []


def test_the_text_so_far_has_whole_characters_only(engine, small_model):
    text = "naïve 日本語 🙂👩‍👩‍👧‍👦 end"
    tokens = tuple(small_model.tokenizer(text, add_special_tokens=False)["input_ids"])
    assert len(tokens) > len(text), "characters of several tokens"
    params = SamplingParams(max_tokens=2000, temperature=0.0, stop=("語 🙂 never",))
    said = []
    for count in range(len(tokens) + 1):
        engine.submit(str(count), Request(params=params, prompt="x", stream=True), generated=tokens[:count])
        said.append(engine.text(str(count)))
        assert engine.cancel(str(count)).text.startswith(said[-1])
    assert all(text.startswith(part) for part in said[:-1])
    assert len(set(said)) > len(text) / 2
    assert said[-1].startswith(text)
