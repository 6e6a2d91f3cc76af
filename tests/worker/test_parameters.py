"""Each parameter by its effect on the packaged model's first layers, and the same after an interruption as without."""

import math

import msgspec
import pytest
import torch
from transformers.generation.continuous_batching.requests import RequestState

from broker.messages import Request, SamplingParams
from gpu_worker.engine.continuous import GenerationLoop
from gpu_worker.engine.loop_options import default_options
from gpu_worker.engine.text import GrowingText
from gpu_worker.engine.transformers import TransformersEngine

pytestmark = pytest.mark.model

PROMPT = "The river and the city and the river"
SEEDED = {"temperature": 1.0, "seed": 3}
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3}


def request(prompt=PROMPT, **params):
    return Request(params=SamplingParams(**{"max_tokens": 12, "temperature": 0.0} | params), prompt=prompt)


def finish(engine, count):
    done = {}
    while len(done) < count:
        done |= {completion.request_id: completion for completion in engine.step(1.0)}
    return done


def run(engine, *requests):
    for index, item in enumerate(requests):
        engine.submit(str(index), item)
    done = finish(engine, len(requests))
    return [done[str(index)] for index in range(len(requests))]


def tokens(engine, **params):
    return run(engine, request(**params))[0].token_ids


@pytest.fixture(scope="module")
def engine(small_model):
    made = TransformersEngine(small_model.model, small_model.tokenizer)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(engine):
    """Greedily, with nothing asked for."""
    return tokens(engine)


def generate(loaded, **options):
    inputs = loaded.tokenizer(PROMPT, return_tensors="pt")
    with torch.inference_mode():
        out = loaded.model.generate(**inputs, max_new_tokens=12, do_sample=False, **options)
    return tuple(out[0, inputs["input_ids"].shape[1] :].tolist())


def test_the_repetition_penalty_gives_what_generate_gives(engine, small_model, plain):
    assert generate(small_model) == plain
    penalised = tokens(engine, repetition_penalty=1.3)
    assert penalised == generate(small_model, repetition_penalty=1.3) != plain


def test_the_models_own_repetition_penalty_is_the_default(second_model, plain, monkeypatch):
    monkeypatch.setattr(second_model.model.generation_config, "repetition_penalty", 1.3)
    made = TransformersEngine(second_model.model, second_model.tokenizer)
    default, none = run(made, request(), request(repetition_penalty=1.0))
    made.close()
    assert default.token_ids == generate(second_model) != plain
    assert none.token_ids == plain


def test_penalties_make_texts_repeat_less(engine):
    long = {"prompt": "the the the the", "max_tokens": 24}
    free, presence, frequency = run(
        engine, request(**long), request(**long, presence_penalty=2.0), request(**long, frequency_penalty=2.0)
    )
    assert len(set(free.token_ids)) < len(set(presence.token_ids))
    assert len(set(free.token_ids)) < len(set(frequency.token_ids))


def test_a_bias_forces_and_forbids(engine, plain):
    assert set(tokens(engine, logit_bias={plain[1]: 100})) == {plain[1]}
    assert plain[0] not in tokens(engine, logit_bias={plain[0]: -100})


def test_an_unknown_token_is_refused_by_the_fields_name(engine):
    bias, stop = run(engine, request(logit_bias={49152: 1}), request(stop_token_ids=(7, 49152)))
    assert "logit_bias[0] must be from 0 to 49151" in bias.error.message
    assert "stop_token_ids[1] must be" in stop.error.message


def test_log_probabilities_are_those_of_the_model(engine, small_model, plain):
    (output,) = run(engine, request(logprobs=3))
    assert output.token_ids == plain == tuple(item.token_id for item in output.logprobs)
    prompt = small_model.tokenizer(PROMPT)["input_ids"]
    # In one pass over the whole, as the model reads it; the engine went token by token.
    with torch.inference_mode():
        scores = small_model.model(torch.tensor([[*prompt, *plain]])).logits[0, len(prompt) - 1 : -1]
    expected = scores.float().log_softmax(-1)
    for place, item in enumerate(output.logprobs):
        assert item.logprob == pytest.approx(expected[place, item.token_id].item(), abs=1e-3)
        assert [other.token_id for other in item.alternatives] == expected[place].topk(3).indices.tolist()
        assert item.alternatives[0].logprob == pytest.approx(item.logprob)  # greedy
    assert "".join(item.text for item in output.logprobs) == output.text


def test_log_probabilities_come_before_temperature_and_penalties(engine, plain):
    free, biased = run(engine, request(logprobs=0), request(logprobs=0, logit_bias={plain[0]: 50}, **SEEDED))
    assert biased.token_ids[0] == plain[0]
    assert biased.logprobs[0].logprob == pytest.approx(free.logprobs[0].logprob, abs=1e-4)
    assert biased.logprobs[0].alternatives == ()


WISHES = [
    PENALTIES,
    PENALTIES | SEEDED,
    {"logit_bias": {30: 4, 28: -9}, "min_tokens": 10} | SEEDED,
    {"logprobs": 2} | PENALTIES,
    {"logprobs": 0, "stop": ("\n",)},
]


@pytest.mark.parametrize("wishes", WISHES, ids=" ".join)
def test_an_interrupted_request_ends_as_one_that_was_not(engine, wishes):
    (whole,) = run(engine, request(**wishes))
    for count in (1, len(whole.token_ids) - 1, len(whole.token_ids)):
        engine.submit("again", request(**wishes), generated=whole.token_ids[:count])
        (again,) = finish(engine, 1).values()
        assert (again.token_ids, again.text) == (whole.token_ids, whole.text)
        # The last digits depend on how many requests shared a step.
        assert _scores(again) == pytest.approx(_scores(whole), abs=1e-3)


def _scores(completion):
    return [item.logprob for item in completion.logprobs or ()]


def test_requests_pushed_out_of_the_cache_keep_their_wishes(engine, second_model, monkeypatch):
    pushed_out = []
    restart = RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda state: pushed_out.append(state) or restart(state)
    )
    options = msgspec.structs.replace(default_options(second_model.model), num_blocks=8, max_batch_tokens=64)
    small = TransformersEngine(second_model.model, second_model.tokenizer, options=options)
    requests = [request(f"{place} {PROMPT} " * 3, logprobs=1, max_tokens=14, **PENALTIES) for place in range(8)]
    crowded = run(small, *requests)
    small.close()
    assert pushed_out
    roomy = run(engine, *requests)
    assert [output.token_ids for output in crowded] == [output.token_ids for output in roomy]
    for one, other in zip(crowded, roomy, strict=True):
        assert _scores(one) == pytest.approx(_scores(other), abs=1e-3)


def test_neighbours_with_wishes_leave_a_text_as_it_is(engine, plain):
    outputs = run(engine, request(logprobs=5), request(), request(**PENALTIES), request(logit_bias={5: 9}), request())
    assert outputs[1].token_ids == outputs[4].token_ids == plain


@pytest.fixture
def with_graphs(second_model, monkeypatch):
    """An engine whose loop says that it has CUDA graphs unless told to do without; and the loops that were made."""
    loops, make = [], GenerationLoop.__init__

    def make_and_note(self, model, options, sampling, *others):
        make(self, model, options, sampling, *others)
        sampling.eager = not options.graphs
        loops.append(options.graphs)

    monkeypatch.setattr(GenerationLoop, "__init__", make_and_note)
    made = TransformersEngine(second_model.model, second_model.tokenizer)
    yield made, loops
    made.close()


def test_a_loop_with_graphs_gives_way_to_one_without(with_graphs, engine, plain, monkeypatch):
    graphs, loops = with_graphs
    expected = [tokens(engine, **PENALTIES), tokens(engine, **SEEDED)]
    graphs.submit("plain", request(max_tokens=60))
    while len(graphs.generated("plain")) < 3:
        graphs.step(0.01)
    wished, other = run(graphs, request(**PENALTIES), request(**SEEDED))
    assert loops == [True, False]
    assert [wished.token_ids, other.token_ids] == expected
    (long,) = finish(graphs, 1).values()
    assert long.token_ids[:12] == plain
    assert run(graphs, request())[0].token_ids == plain
    assert loops == [True, False]  # not for every request
    monkeypatch.setattr("gpu_worker.engine.graphs._LINGER_S", -math.inf)
    assert run(graphs, request())[0].token_ids == plain
    assert loops == [True, False, True]


TEXTS = (
    "naïve café — “quoted”",
    "🙂🚀 and 👩‍👩‍👧‍👦 in one",
    "日本語の文字、漢字とかな",
    "한국어 문장입니다",
    "עברית و عربي",
)


@pytest.mark.parametrize("text", TEXTS)
def test_text_grows_by_whole_characters(small_model, text):
    tokenizer = small_model.tokenizer
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    growing = GrowingText(lambda part: tokenizer.decode(list(part), skip_special_tokens=True))
    parts = [growing.push(token_id) for token_id in ids]
    assert growing.text == text == "".join(parts)
    assert "\ufffd" not in growing.text
    assert "" in parts or text == TEXTS[0]  # some characters are several tokens


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_cut_in_a_character_ends_before_it(engine, small_model, text):
    ids = tuple(small_model.tokenizer(text, add_special_tokens=False)["input_ids"])
    for count in range(1, len(ids) + 1):
        # Tokens of an earlier run that are already all: only their text is made.
        engine.submit("cut", request(max_tokens=count), generated=ids[:count])
        (output,) = finish(engine, 1).values()
        assert output.token_ids == ids[:count]
        assert text.startswith(output.text)
    assert output.text == text


def test_a_stop_string_of_several_tokens_a_character_is_found(engine, small_model):
    ids = tuple(small_model.tokenizer("日本語の文字", add_special_tokens=False)["input_ids"])
    engine.submit("stop", request(max_tokens=100, stop=("語の",)), generated=ids)
    (output,) = finish(engine, 1).values()
    assert output.text == "日本"
