"""The openai engine against a server that does wrong: what is tried again, what is whose error, what ends."""

import threading

import pytest

from broker.chat import ChatMessage
from broker.errors import ConfigurationError
from broker.messages import FinishReason, Request, SamplingParams, Usage
from gpu_worker.engine import openai_client, openai_streams
from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.engine.openai_backend import OpenAIOptions
from gpu_worker.engine.openai_server import OpenAIEngine
from gpu_worker.engine.progress import heard_by
from tests.support.openai_fake import DONE, GOOD, MODEL, RESET, WAIT, event, fake_server, piece
from tests.support.waiting import wait_until


@pytest.fixture
def fake():
    with fake_server() as server:
        yield server


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(openai_streams, "_BACKOFF_S", 0.001)


@pytest.fixture
def engine(fake, quick):
    made = OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL, api_key="key"))
    yield made
    made.close()


def request(prompt="Hello", **params):
    return Request(params=SamplingParams(**{"max_tokens": 8, "temperature": 0.0} | params), prompt=prompt)


def answer(engine, item=None):
    engine.submit("x", item or request())
    done = []
    while not done:
        done = engine.step(1.0)
    assert engine.load.running == engine.load.waiting == 0
    return done[0]


def test_a_good_answer(engine, fake):
    output = answer(engine)
    assert (output.text, output.finish_reason, output.error) == (" one two", FinishReason.LENGTH, None)
    assert output.usage == Usage(prompt_tokens=3, completion_tokens=2)
    assert engine.load.generated_tokens == 2
    assert fake.keys == ["Bearer key"]


@pytest.mark.parametrize(
    "wrong",
    [
        (429, {"error": {"message": "slow down"}}),
        (500, {"detail": "boom"}),
        (503, {}),
        (piece(" lost"), RESET),
        (piece(" lost"),),  # ends without a reason
        (piece(" lost"), DONE),
        ("data: {not json\n\n",),
        ("data: []\n\n",),
        (event(choices=[{"text": 7}]),),
        (event(choices=[{}]),),
        ('data: {"choices": [], "usage": {"prompt_tokens": 1e999}}\n\n',),
        ("data: " + "[" * 100_000 + "\n\n",),
        (event(error={"message": "boom", "code": 500}),),
        (event(error="boom"),),
        (piece(" lost", "abort"),),
    ],
)
def test_what_may_pass_is_tried_again_from_the_beginning(engine, fake, wrong):
    fake.answers.append(wrong)
    output = answer(engine)
    assert (output.text, output.error) == (" one two", None)
    assert len(fake.bodies) == 2


@pytest.mark.parametrize("wrong", [(500, {"detail": "boom"}), (piece(" lost"), RESET)])
def test_what_does_not_pass_is_an_engine_error(engine, fake, wrong):
    fake.answers.extend([wrong] * openai_streams.ATTEMPTS)
    output = answer(engine)
    assert output.error.code == "engine_error"
    assert len(fake.bodies) == openai_streams.ATTEMPTS
    assert answer(engine).text == " one two"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ((400, {"error": {"message": "This model's maximum context length is 100 tokens"}}), "context_length_exceeded"),
        ((400, {"error": {"message": "bad", "type": "exceed_context_size_error"}}), "invalid_request"),
        ((400, {"error": "no such thing"}), "invalid_request"),
        ((422, {"detail": "Unexpected fields"}), "invalid_request"),
        ((event(error={"message": "too long", "code": 400}),), "context_length_exceeded"),
        ((401, {}), "engine_error"),
        ((404, {"message": "model is gone"}), "engine_error"),
    ],
)
def test_a_refusal_is_the_requests_error_and_is_not_tried_again(engine, fake, wrong, code):
    fake.answers.append(wrong)
    assert answer(engine).error.code == code
    assert len(fake.bodies) == 1


def test_odd_streams_are_read(engine, fake):
    fake.answers.append((": comment\n\n", "event: x\nid: 1\n", *GOOD[:-1], DONE, DONE, "data: never read\n\n"))
    assert answer(engine).text == " one two"
    parts = "".join(GOOD).encode()
    fake.answers.append(tuple(parts[at : at + 7] for at in range(0, len(parts), 7)))
    assert answer(engine).text == " one two"
    fake.answers.append((piece("é".encode().decode() + "🙂", "stop"),))  # neither usage nor [DONE]
    output = answer(engine)
    assert (output.text, output.finish_reason) == ("é🙂", FinishReason.STOP)
    assert output.usage == Usage(prompt_tokens=0, completion_tokens=1)


def test_a_text_may_hold_what_ends_lines_elsewhere(engine, fake):
    raw = "a\u2028b\u2029c\x85d"
    fake.answers.append((f'data: {{"choices": [{{"text": "{raw}", "finish_reason": "stop"}}]}}\r\n\r\n',))
    assert answer(engine).text == raw
    assert len(fake.bodies) == 1


def test_the_beginning_of_a_character_is_no_text(engine, fake):
    fake.answers.append((piece(" one"), piece("\ufffd", "length"), DONE))
    assert answer(engine).text == " one"


def test_what_nobody_foresaw_ends_one_request_and_none_hangs(engine, fake, monkeypatch):
    def fail(data):
        raise ZeroDivisionError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr("gpu_worker.engine.openai_client.read_event", fail)
        assert answer(engine).error.code == "engine_error"
    assert answer(engine).text == " one two"


def test_as_many_run_as_its_limits_say(fake, quick):
    engine = OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL))
    engine.resize(slots=100)
    fake.answers.extend([(piece(" one"), WAIT)] * 100)
    for index in range(100):
        engine.submit(str(index), request(max_tokens=2))
    wait_until(lambda: fake.open == 100, what="as many streams")
    assert (engine.load.running, engine.load.waiting) == (100, 0)
    engine.close()


def test_what_can_never_have_room_is_refused(fake, quick):
    engine = OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL, kv_tokens=50))
    assert engine.capacity.context_tokens == 50
    error = answer(engine, request(max_tokens=60)).error
    assert error.code == "context_length_exceeded"
    assert error.message == "max_tokens 60 exceed the context of 50 tokens; max_tokens can be at most 50"
    engine.resize(kv_tokens=80)
    assert answer(engine, request(max_tokens=60)).text == " one two"
    engine.close()


def test_chat_goes_to_the_chat_endpoint(engine, fake):
    chunks = [event(choices=[{"delta": {"role": "assistant", "content": None}}])]
    chunks += [event(choices=[{"delta": {"content": "Hi"}, "finish_reason": "stop"}]), DONE]
    fake.answers.append(tuple(chunks))
    turns = (ChatMessage(role="user", content="Hello"),)
    assert answer(engine, Request(params=SamplingParams(), messages=turns)).text == "Hi"
    path, body = fake.bodies[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_cancelled_request_closes_its_connection_and_frees_its_slot(fake, quick):
    engine = OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL, slots=1))
    fake.answers.append((piece(" one"), WAIT))
    engine.submit("slow", request())
    wait_until(lambda: engine.load.generated_tokens == 1)
    engine.submit("next", request())
    assert engine.load.waiting == 1
    assert engine.step(0.0) == []
    assert engine.cancel("slow").text == " one"
    done = {}
    wait_until(lambda: done.update({c.request_id: c for c in engine.step(0.05)}) or done)
    assert {name: output.text for name, output in done.items()} == {"next": " one two"}
    wait_until(lambda: fake.open == 0, what="closed connections")
    engine.close()


def test_closing_ends_threads_and_connections(fake):
    before = set(threading.enumerate())
    engine = OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL))
    fake.answers.extend([(piece(" one"), WAIT)] * 3)
    for index in range(3):
        engine.submit(str(index), request())
    wait_until(lambda: fake.open == 3)
    engine.close()
    engine.close()
    assert engine.step(1.0) == []
    wait_until(lambda: fake.open == 0, what="closed connections")
    wait_until(lambda: set(threading.enumerate()) <= before, what="the end of its threads")


def test_a_server_that_is_gone_ends_the_engine(fake, quick):
    engine = OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL))
    fake.stop()
    engine.submit("x", request())
    with pytest.raises(EngineDeadError, match="does not answer any more"):
        wait_until(lambda: engine.step(1.0))
    engine.close()


def test_a_server_that_does_not_come_up_or_is_still_loading_is_said_so(fake):
    fake.health = 503
    heard = []
    with heard_by(heard.append), pytest.raises(EngineDeadError, match=r"does not answer after 0\.3 s: loading"):
        OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL, start_timeout_s=0.3))
    assert f"waiting for the server at {fake.url}: loading" in heard


def test_one_that_is_waited_for_long_is_a_line_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(openai_client, "_TELL_S", 0.0)
    with pytest.raises(EngineDeadError):
        OpenAIEngine(OpenAIOptions(url="http://127.0.0.1:9", model=MODEL, start_timeout_s=0.3))
    (told,) = caplog.messages
    assert told.startswith("waiting for the server at http://127.0.0.1:9, for up to 0.3 s: ")


def test_another_model_or_no_size_is_refused(fake):
    fake.models = [{"id": "a", "max_model_len": 9}, {"id": "b"}]
    with pytest.raises(ConfigurationError, match="does not serve it, but: a, b"):
        OpenAIEngine(OpenAIOptions(url=fake.url, model="c"))
    with pytest.raises(ConfigurationError, match="STOKER_OPENAI_CONTEXT_TOKENS"):
        OpenAIEngine(OpenAIOptions(url=fake.url, model="b"))


def test_the_warm_up_tells_when_the_server_does_not_generate(engine, fake):
    fake.answers.append((400, {"error": "broken"}))
    with pytest.raises(EngineDeadError, match=r"warm-up.*broken"):
        engine.warm_up()


def test_the_warm_up_does_not_wait_for_ever(fake):
    engine = OpenAIEngine(OpenAIOptions(url=fake.url, model=MODEL, start_timeout_s=0.5))
    fake.answers.append((WAIT,))
    with pytest.raises(EngineDeadError, match=r"generated nothing within 0\.5 s"):
        engine.warm_up()
    engine.close()


def test_after_a_broken_stream_the_text_so_far_does_not_shrink(engine, fake):
    streaming = Request(params=SamplingParams(temperature=0.0), prompt="Hello", stream=True)
    fake.answers.append((piece(" one"), piece(" two"), WAIT))
    engine.submit("x", streaming)
    wait_until(lambda: engine.text("x") == " one two")
    engine.sleep()
    assert engine.text("x") == " one two"
    fake.answers.append((piece(" one"), WAIT))
    steps = engine.load.steps
    engine.wake()
    wait_until(lambda: engine.load.steps > steps)
    assert engine.text("x") == " one two"
    engine.cancel("x")


def test_no_text_is_shown_before_its_end_where_chance_decides(engine, fake):
    fake.answers.append((piece(" one"), WAIT))
    engine.submit("x", Request(params=SamplingParams(), prompt="Hello", stream=True))
    wait_until(lambda: engine.load.generated_tokens == 1)
    assert engine.text("x") == ""
    engine.cancel("x")
