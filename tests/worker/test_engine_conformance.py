"""What every engine must do, run against each."""

import gc
import threading
import weakref

import msgspec
import pytest

from broker.chat import ChatMessage
from broker.messages import FinishReason, Request, SamplingParams
from gpu_worker.engine.catalog import create_engine
from gpu_worker.engine.errors import NoRoomError
from gpu_worker.engine.fan_out import FanOut
from gpu_worker.engine.simulated import SimulatedEngine
from gpu_worker.settings import load_worker_settings

PROMPTS = ("The river", "Once upon a time there was a", "A list of colours: red,", "Why")


OURS = ("simulated", *(pytest.param(name, marks=pytest.mark.model) for name in ("transformers", "padded", "openai")))
# What a request has to say to want something; each is refused by an engine that declares that it does not offer it.
WISHES = {
    "top_k": 3,
    "seed": 1,
    "stop": ("never to be found",),
    "include_stop_str_in_output": True,
    "stop_token_ids": (3,),
    "ignore_eos": True,
    "min_tokens": 2,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": ((3, 1.0),),
    "logprobs": 1,
    "echo": True,
    "n": 2,
    "truncate_prompt_tokens": 1,
    "input_ids": (5, 6),
    "return_input_ids": True,
}


def pytest_generate_tests(metafunc):
    chosen = metafunc.config.getoption("--engine", None)
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", [chosen] if chosen else OURS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def engine(request):
    if request.config.getoption("--engine", None):
        made = create_engine(load_worker_settings(engine=request.param))
    elif request.param == "simulated":
        made = FanOut(SimulatedEngine())
    elif request.param == "openai":
        url, folder = (request.getfixturevalue(name) for name in ("transformers_server", "small_folder"))
        made = create_engine(load_worker_settings({}, engine="openai", openai_url=url, model=str(folder)))
    elif request.param == "padded":  # the default engine's other loop, with a model as over several devices
        from gpu_worker.engine.loading import load_model
        from gpu_worker.engine.loop_options import default_options
        from gpu_worker.engine.transformers import TransformersEngine
        from tests.support.spread import spread

        folder = request.getfixturevalue("small_folder")
        loaded = load_model(str(folder), cache_dir=folder, device="cpu")
        options = msgspec.structs.replace(default_options(loaded.model), padded=True)
        made = FanOut(TransformersEngine(spread(loaded.model), loaded.tokenizer, options=options))
    else:
        from gpu_worker.engine.transformers import TransformersEngine

        loaded = request.getfixturevalue("small_model")
        made = FanOut(TransformersEngine(loaded.model, loaded.tokenizer))
    made.warm_up()
    yield made
    made.close()


def wishing(name):
    """A request that wants one thing."""
    if name == "input_ids":
        return Request(params=SamplingParams(max_tokens=3, temperature=0.0), input_ids=WISHES[name])
    plain = request(max_tokens=3)
    if name in Request.__struct_fields__:
        return msgspec.structs.replace(plain, **{name: WISHES[name]})
    return request(max_tokens=3, **{name: WISHES[name]})


def offers(engine, *names):
    """Whether the engine does all of these; what it does not do, it declares and refuses."""
    refused = [name for name in names if name in engine.traits.refuses]
    for name in refused:
        (output,) = run(engine, wishing(name))
        assert output.error.code == "unsupported_parameter"
    return not refused


def request(prompt="The river", **params):
    return Request(params=SamplingParams(**{"max_tokens": 8, "temperature": 0.0} | params), prompt=prompt)


def finish(engine, count):
    done = {}
    while len(done) < count:
        for completion in engine.step(1.0):
            assert completion.request_id not in done, "one completion a request"
            done[completion.request_id] = completion
    return done


def run(engine, *requests):
    for index, item in enumerate(requests):
        engine.submit(str(index), item)
    done = finish(engine, len(requests))
    assert set(done) == {str(index) for index in range(len(requests))}
    assert engine.load.running == engine.load.waiting == 0
    return [done[str(index)] for index in range(len(requests))]


def started(engine, request_id, tokens=2):
    """Step until a request has some tokens; what else ends meanwhile is returned."""
    done = []
    before = engine.load.generated_tokens
    # A simulated step is one token; a real loop runs by itself, and would starve of a thread that does not wait.
    tick_s = 0.0 if isinstance(engine._engine, SimulatedEngine) else 0.01

    def so_far():
        return len(engine.generated(request_id)) if engine.traits.token_ids else engine.load.generated_tokens - before

    while so_far() < tokens:
        done += engine.step(tick_s)
        assert request_id not in {completion.request_id for completion in done}
    return done


def test_every_request_gets_one_completion(engine):
    outputs = run(engine, *(request(prompt) for prompt in PROMPTS))
    assert all(output.text and output.error is None for output in outputs)
    assert engine.step(0.0) == []


@pytest.mark.parametrize("name", WISHES)
def test_what_is_not_declared_as_refused_is_done(engine, name):
    (output,) = run(engine, wishing(name))
    if name in engine.traits.refuses:
        assert (output.error.code, output.finish_reason) == ("unsupported_parameter", FinishReason.ERROR)
        assert name in output.error.message
    else:
        assert output.error is None


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_max_tokens_is_the_end(engine, max_tokens):
    (output,) = run(engine, request(max_tokens=max_tokens))
    assert output.usage.completion_tokens == max_tokens
    assert len(output.token_ids) == (max_tokens if engine.traits.token_ids else 0)
    assert output.finish_reason is FinishReason.LENGTH
    assert output.usage.prompt_tokens > 0


def test_a_stop_string_ends_the_text_before_it(engine):
    (whole,) = run(engine, request(max_tokens=8))
    stop = whole.text[len(whole.text) // 2 :][:5]
    (output,) = run(engine, request(max_tokens=100, stop=(stop, "never to be found")))
    assert output.text == whole.text[: whole.text.find(stop)]
    assert output.finish_reason is FinishReason.STOP
    assert output.token_ids == whole.token_ids[: len(output.token_ids)]
    assert 0 < output.usage.completion_tokens <= 8
    assert len(output.token_ids) == (output.usage.completion_tokens if engine.traits.token_ids else 0)


def test_a_cancelled_request_gives_what_it_had_and_nothing_more(engine):
    engine.submit("gone", request(max_tokens=2000))
    engine.submit("stays", request(PROMPTS[1]))
    done = started(engine, "gone")
    cancelled = engine.cancel("gone")
    assert cancelled.request_id == "gone"
    assert cancelled.usage.completion_tokens >= 2
    assert len(cancelled.token_ids) == (cancelled.usage.completion_tokens if engine.traits.token_ids else 0)
    assert engine.generated("gone") == ()
    if not done:
        done = list(finish(engine, 1).values())
    assert [completion.request_id for completion in done] == ["stays"]
    assert engine.cancel("gone") is None
    (whole,) = run(engine, request(max_tokens=cancelled.usage.completion_tokens))
    assert (whole.token_ids, whole.text) == (cancelled.token_ids, cancelled.text)


SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 5}


@pytest.mark.parametrize(
    "sampling", [{}, SAMPLED, SAMPLED | {"min_tokens": 9, "stop": (" ",), "include_stop_str_in_output": True}]
)
def test_a_resumed_request_is_as_if_never_interrupted(engine, sampling):
    if not offers(engine, *sampling):
        return
    (whole,) = run(engine, request(PROMPTS[1], max_tokens=12, **sampling))
    engine.submit("first", request(PROMPTS[1], max_tokens=2000, **sampling))
    started(engine, "first", 3)
    tokens = engine.cancel("first").token_ids[:6]
    engine.submit("second", request(PROMPTS[1], max_tokens=12, **sampling), generated=tokens)
    (resumed,) = finish(engine, 1).values()
    assert (resumed.text, resumed.token_ids) == (whole.text, whole.token_ids)
    assert (resumed.usage, resumed.finish_reason) == (whole.usage, whole.finish_reason)


def test_a_resumed_request_that_was_complete_just_completes(engine):
    (whole,) = run(engine, request())
    engine.submit("again", request(), generated=whole.token_ids)
    (again,) = finish(engine, 1).values()
    assert (again.text, again.finish_reason) == (whole.text, whole.finish_reason)


def test_a_stop_string_is_found_across_a_resumption(engine):
    (whole,) = run(engine, request())
    stop = whole.text[1:6]
    engine.submit("again", request(stop=(stop,)), generated=whole.token_ids[:1])
    (again,) = finish(engine, 1).values()
    assert again.text == whole.text[: whole.text.find(stop)]


def test_bad_requests_fail_alone(engine):
    room = engine.capacity.context_tokens
    (alone,) = run(engine, request())
    good, too_long, too_much = run(engine, request(), request("word " * (room + 1)), request(max_tokens=room))
    assert good == alone
    for bad in (too_long, too_much):
        assert bad.error.code == "context_length_exceeded"
        assert str(room) in bad.error.message
        assert bad.finish_reason is FinishReason.ERROR
    assert "at most" in too_much.error.message


def test_the_same_seed_gives_the_same_text_and_another_one_another(engine):
    if not offers(engine, "seed"):
        return

    def sampled(seed):
        return request(max_tokens=16, temperature=1.0, seed=seed)

    one, two, other = run(engine, sampled(1), sampled(1), sampled(2))
    assert one.text == two.text != other.text


def test_chat_and_token_ids_are_prompts_too(engine):
    params = SamplingParams(max_tokens=4, temperature=0.0)
    chat = Request(
        params=params,
        messages=(ChatMessage(role="user", content="Hi"),),
        return_input_ids=offers(engine, "return_input_ids"),
    )
    (answer,) = run(engine, chat)
    assert answer.error is None
    assert answer.text
    if not chat.return_input_ids:
        return
    assert len(answer.input_ids) == answer.usage.prompt_tokens
    if not offers(engine, "input_ids"):
        return
    (same,) = run(engine, Request(params=params, input_ids=answer.input_ids))
    assert same.token_ids == answer.token_ids
    assert same.input_ids == ()


def test_one_in_hand_is_not_taken_twice(engine):
    engine.submit("a", request())
    engine.submit("a", request())
    finish(engine, 1)
    assert engine.step(0.0) == []
    assert engine.load.running == engine.load.waiting == 0


def test_steps_and_tokens_only_grow(engine):
    before = engine.load
    run(engine, request(max_tokens=6))
    after = engine.load
    assert after.steps >= before.steps + 6
    assert after.generated_tokens >= before.generated_tokens + 6


def test_the_cache_is_held_while_a_request_runs(engine):
    before = engine.load
    engine.submit("long", request(PROMPTS[1], max_tokens=2000))
    started(engine, "long")
    assert 0 < engine.load.kv_tokens_used <= engine.capacity.kv_tokens
    engine.cancel("long")
    (output,) = run(engine, request())
    after = engine.load
    assert after.kv_tokens_used == 0
    assert after.prompt_tokens - before.prompt_tokens > output.usage.prompt_tokens
    assert 0 <= after.cached_prompt_tokens <= after.prompt_tokens


def test_any_thread_may_submit_and_cancel(engine):
    def submit(name):
        for index in range(4):
            engine.submit(f"{name}{index}", request(max_tokens=3))
            engine.submit(f"{name}{index}-cancelled", request(max_tokens=2000))
            engine.cancel(f"{name}{index}-cancelled")

    threads = [threading.Thread(target=submit, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    done = finish(engine, 12)
    for thread in threads:
        thread.join()
    assert set(done) == {f"{name}{index}" for name in "abc" for index in range(4)}


def test_a_wanted_stop_string_is_kept(engine):
    if not offers(engine, "include_stop_str_in_output"):
        return
    (whole,) = run(engine, request())
    stop = whole.text[2:5]
    (kept,) = run(engine, request(stop=(stop,), include_stop_str_in_output=True))
    assert kept.text == whole.text[: whole.text.find(stop) + len(stop)]
    assert kept.finish_reason is FinishReason.STOP


def test_a_stop_string_does_not_count_before_the_least_tokens(engine):
    if not offers(engine, "min_tokens"):
        return
    (whole,) = run(engine, request())
    (later,) = run(engine, request(min_tokens=4, stop=(" ",)))
    assert later.token_ids == whole.token_ids[: len(later.token_ids)]
    assert len(later.token_ids) >= 4
    assert whole.text.startswith(later.text)
    assert " " in later.text[1:]  # the first ones did not end it


def test_a_stop_token_ends_the_text_before_it(engine):
    if not offers(engine, "stop_token_ids", "include_stop_str_in_output"):
        return
    (whole,) = run(engine, request())
    stop = whole.token_ids[4]
    at = whole.token_ids.index(stop)
    hidden, kept = run(
        engine,
        request(stop_token_ids=(stop, 1)),
        request(stop_token_ids=(stop,), include_stop_str_in_output=True),
    )
    assert hidden.token_ids == kept.token_ids == whole.token_ids[: at + 1]
    assert hidden.finish_reason is kept.finish_reason is FinishReason.STOP
    (before,) = run(engine, request(max_tokens=at)) if at else ([],)
    assert hidden.text == (before.text if at else "")
    assert kept.text.startswith(hidden.text)
    assert len(kept.text) > len(hidden.text)


def test_a_stop_token_is_not_chosen_before_the_least_tokens(engine):
    if not offers(engine, "stop_token_ids", "min_tokens"):
        return
    (whole,) = run(engine, request())
    (other,) = run(engine, request(stop_token_ids=(whole.token_ids[0],), min_tokens=5))
    assert whole.token_ids[0] not in other.token_ids[:5]
    assert len(other.token_ids) >= 5


def test_echo_puts_the_prompt_in_front(engine):
    if not offers(engine, "echo"):
        return
    (plain,) = run(engine, request(PROMPTS[1]))
    (echoed,) = run(engine, request(PROMPTS[1], echo=True))
    assert echoed.text == PROMPTS[1] + plain.text
    assert (echoed.token_ids, echoed.usage) == (plain.token_ids, plain.usage)


def test_a_truncated_prompt_is_its_end(engine):
    if not offers(engine, "truncate_prompt_tokens", "input_ids", "return_input_ids"):
        return
    room = engine.capacity.context_tokens
    params = SamplingParams(max_tokens=4, temperature=0.0)
    (plain,) = run(engine, Request(params=params, input_ids=(11, 12, 13), return_input_ids=True))
    short = SamplingParams(max_tokens=4, temperature=0.0, truncate_prompt_tokens=3)
    long = Request(params=short, input_ids=(7,) * room + (11, 12, 13), return_input_ids=True)
    (truncated,) = run(engine, long)
    assert (truncated.input_ids, truncated.token_ids) == ((11, 12, 13), plain.token_ids)
    assert truncated.usage.prompt_tokens == 3


def test_several_greedy_texts_are_the_same(engine):
    one, several = run(engine, request(max_tokens=4), request(max_tokens=4, n=2))
    assert [choice.text for choice in several.choices] == [one.text] * 2
    assert several.usage.prompt_tokens == one.usage.prompt_tokens
    assert several.usage.completion_tokens == 2 * one.usage.completion_tokens


def test_several_texts_of_one_request(engine):
    if not offers(engine, "seed"):
        return
    one, several = run(engine, request(**SAMPLED), request(n=3, **SAMPLED))
    texts = [choice.text for choice in several.choices]
    assert len(set(texts)) == 3
    assert texts[0] == several.text == one.text
    assert several.usage.prompt_tokens == one.usage.prompt_tokens
    assert several.usage.completion_tokens == sum(len(choice.token_ids) for choice in several.choices)
    (again,) = run(engine, request(n=3, **SAMPLED))
    assert again.choices == several.choices


def test_several_texts_go_on_where_they_were_interrupted(engine):
    if not offers(engine, "seed"):
        return
    (whole,) = run(engine, request(n=2, max_tokens=12, **SAMPLED))
    engine.submit("first", request(n=2, max_tokens=12, **SAMPLED))
    done = started(engine, "first", 5)
    checkpoint = engine.generated("first")
    assert engine.cancel("first").checkpoint[:3] == checkpoint[:3] or done
    engine.submit("second", request(n=2, max_tokens=12, **SAMPLED), generated=checkpoint)
    (resumed,) = finish(engine, 1).values()
    assert resumed.choices == whole.choices
    assert engine.load.running == engine.load.waiting == 0


def test_several_texts_fail_as_one(engine):
    (bad,) = run(engine, request(n=3, max_tokens=engine.capacity.context_tokens))
    assert bad.error.code == "context_length_exceeded"
    assert engine.step(0.0) == []


def streamed(engine, *requests):
    """What `text` said of each request at any look, and its completion."""
    said = {str(index): [""] for index in range(len(requests))}
    for index, item in enumerate(requests):
        engine.submit(str(index), msgspec.structs.replace(item, stream=True))
    done = {}
    tick_s = 0.0 if isinstance(engine._engine, SimulatedEngine) else 0.01
    while len(done) < len(requests):
        done |= {completion.request_id: completion for completion in engine.step(tick_s)}
        for request_id, texts in said.items():
            if (text := engine.text(request_id)) != texts[-1] and request_id not in done:
                texts.append(text)
    return [(said[str(index)], done[str(index)]) for index in range(len(requests))]


def test_the_text_so_far_is_always_a_beginning_of_the_text(engine):
    (whole,) = run(engine, request(max_tokens=12))
    stop = whole.text[len(whole.text) // 2 :][:5]
    asked = [request(max_tokens=12), request(max_tokens=12, stop=(stop, "never to be found"))]
    wishes = {"echo": True, "min_tokens": 4, "stop": (" ",), "include_stop_str_in_output": True, **SAMPLED}
    if offers(engine, *wishes):
        asked.append(request(max_tokens=12, **wishes))
    if offers(engine, "stop_token_ids"):
        asked.append(request(max_tokens=12, stop_token_ids=(whole.token_ids[6],)))
    plain = run(engine, *asked)
    results = streamed(engine, *asked)
    for (said, completion), expected in zip(results, plain, strict=True):
        assert completion == expected
        assert all(completion.text.startswith(text) for text in said)
        assert said == sorted(said, key=len)
    assert len(results[0][0]) > 3, "it came bit by bit"


def test_there_is_no_text_of_one_that_does_not_stream_or_is_unknown(engine):
    engine.submit("plain", request(max_tokens=2000))
    started(engine, "plain")
    assert engine.text("plain") == engine.text("unknown") == ""
    engine.cancel("plain")
    engine.submit("gone", msgspec.structs.replace(request(max_tokens=2000), stream=True))
    started(engine, "gone")
    text = engine.text("gone")
    assert text
    assert engine.cancel("gone").text.startswith(text)
    assert engine.text("gone") == ""


def test_the_text_so_far_of_a_resumed_request_begins_at_its_beginning(engine):
    (whole,) = run(engine, request(PROMPTS[1], max_tokens=8))
    again = msgspec.structs.replace(request(PROMPTS[1], max_tokens=2000), stream=True)
    engine.submit("again", again, generated=whole.token_ids)
    started(engine, "again", 9)
    text = engine.text("again")
    completion = engine.cancel("again")
    assert text.startswith(whole.text)
    assert completion.text.startswith(text)


def test_asleep_it_makes_no_step_and_awake_it_goes_on_as_if_nothing_had_been(engine):
    (whole,) = run(engine, request(max_tokens=16))
    engine.submit("a", request(max_tokens=16))
    assert started(engine, "a", 3) == []
    engine.sleep()
    engine.sleep()
    tokens, steps = engine.generated("a"), engine.load.steps
    engine.submit("b", request(max_tokens=4))
    engine.submit("gone", request(max_tokens=4))
    assert engine.step(0.1) == []
    assert engine.cancel("gone").token_ids == ()
    assert (engine.generated("a"), engine.load.steps) == (tokens, steps)
    assert engine.load.running == 0
    assert engine.load.waiting == 2
    engine.wake()
    engine.wake()
    done = finish(engine, 2)
    assert (done["a"].text, done["a"].token_ids, done["a"].usage) == (whole.text, whole.token_ids, whole.usage)
    assert done["b"].token_ids == whole.token_ids[:4]


def test_a_resize_changes_the_capacity_and_keeps_what_is_in_hand(engine):
    before = engine.capacity
    (whole,) = run(engine, request(max_tokens=10))
    for index in range(2):
        engine.submit(str(index), request(max_tokens=10))
    done = {completion.request_id: completion for completion in started(engine, "0", 3)}
    engine.resize(slots=1, kv_tokens=512)
    assert (engine.capacity.slots, engine.capacity.kv_tokens) == (1, 512)
    assert engine.capacity.context_tokens <= 512
    done |= finish(engine, 2 - len(done))
    assert {(output.text, output.token_ids) for output in done.values()} == {(whole.text, whole.token_ids)}
    (too_long,) = run(engine, request(max_tokens=600))
    assert too_long.error.code == "context_length_exceeded"
    engine.resize(kv_tokens=before.kv_tokens)
    assert engine.capacity.slots == 1
    engine.resize(slots=before.slots)
    assert engine.capacity == before
    assert run(engine, request(max_tokens=10)) == [msgspec.structs.replace(whole, request_id="0")]


def test_what_has_not_begun_is_told_in_its_order(engine):
    slots = engine.capacity.slots
    engine.resize(slots=1)
    for name in ("begun", "next", "last"):
        engine.submit(name, request(max_tokens=1000))
    assert started(engine, "begun") == []
    assert engine.not_begun() == ("next", "last")
    assert engine.cancel("last").token_ids == ()
    assert engine.not_begun() == ("next",)
    engine.submit("last", request(max_tokens=1000))
    assert engine.cancel("next").token_ids == ()
    engine.submit("next", request(max_tokens=1000))
    assert engine.not_begun() == ("last", "next"), "what was taken back is given again, behind the others"
    engine.cancel("last")
    engine.cancel("next")
    engine.cancel("begun")
    assert engine.not_begun() == ()
    engine.resize(slots=slots)


def test_a_resize_that_a_request_in_hand_would_not_survive_is_refused(engine):
    before = engine.capacity
    engine.submit("a", request(max_tokens=300))
    with pytest.raises(NoRoomError, match="a request in hand may need 30"):
        engine.resize(slots=1, kv_tokens=128)
    assert engine.capacity == before
    assert started(engine, "a", 2) == []
    engine.cancel("a")


def test_it_says_what_memory_it_occupies(engine):
    awake = engine.memory()
    assert awake.rss_mib > 10
    if awake.weights_mib is None:
        return
    from gpu_worker.engine.padded import PaddedLoop  # brings torch

    weights = sum(weight.nbytes for weight in engine._engine._resident._model.parameters()) / 2**20
    assert awake.weights_mib == pytest.approx(weights, rel=0.01)
    if isinstance(engine._engine._resident._loop, PaddedLoop):  # its cache is as large as what it holds
        assert awake.kv_cache_mib == 0
        engine.submit("long", request("word " * 100, max_tokens=1000))
        started(engine, "long")
        assert engine.memory().kv_cache_mib > 0
        engine.cancel("long")
        assert engine.memory().kv_cache_mib == 0
        return
    assert awake.kv_cache_mib > 1
    cache = weakref.ref(engine._engine._resident._loop._processor.cache.cache_tensor)
    assert cache().nbytes / 2**20 == pytest.approx(awake.kv_cache_mib, abs=0.1)
    engine.sleep()
    gc.collect()
    assert cache() is None
    assert engine.memory().kv_cache_mib == 0
    engine.wake()
    assert engine.memory().kv_cache_mib == awake.kv_cache_mib
