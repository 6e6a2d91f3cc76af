"""Every kind of good and bad input line, with its number, among good ones that are still read."""

import codecs
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.chat import ChatMessage
from broker.messages import SamplingParams
from driver.batch_file import BadLine, BatchLine, RequestKind, read_batch

CHAT_URL = "/v1/chat/completions"
TEXT_URL = "/v1/completions"
EXAMPLES = Path(__file__).parents[3] / "examples" / "requests.jsonl"


def line(custom_id: Any = "x", url: Any = TEXT_URL, method: Any = "POST", **body: Any) -> bytes:
    if url == CHAT_URL:
        body.setdefault("messages", [{"role": "user", "content": "Hi"}])
    elif "prompt" not in body and "input_ids" not in body:
        body["prompt"] = "Hi"
    fields = {"custom_id": custom_id, "method": method, "url": url, "body": body}
    return json.dumps(fields).encode()


def chat(messages: Any = None, **body: Any) -> bytes:
    if messages is not None:
        body["messages"] = messages
    return line(url=CHAT_URL, **body)


def read(*lines: bytes, end: bytes = b"\n", **options: Any) -> list[BatchLine | BadLine]:
    return list(read_batch(io.BytesIO(b"".join(item + end for item in lines)), **options))


def read_one(content: bytes) -> BatchLine:
    [item] = read(content)
    assert isinstance(item, BatchLine), item
    return item


BEFORE, AFTER = line("before"), line("after")

BAD = {
    "not json": (b"hello", "invalid_json_line", "not JSON"),
    "pretty printed": (b'{"custom_id": "x",', "invalid_json_line", "one whole JSON object on each line"),
    "two objects": (line() + line("y"), "invalid_json_line", "not JSON"),
    "array": (b"[1]", "invalid_json_line", "not a JSON object but an array"),
    "string": (b'"x"', "invalid_json_line", "not a JSON object but a string"),
    "null": (b"null", "invalid_json_line", "not a JSON object but null"),
    "number": (b"1", "invalid_json_line", "not a JSON object but a number"),
    "nul bytes": (b"\0\0", "invalid_json_line", "not JSON"),
    "deep": (b"[" * 100_000, "invalid_request", "nested too deeply"),
    "deep value": (line(seed=None)[:-2] + b', "n":' + b"[" * 900 + b"]" * 900 + b"}}", "*", ""),
    "not utf-8": (b'{"custom_id": "caf\xe9"}', "invalid_json_line", "byte 0xe9 at position 18; save the file as UTF-8"),
    "utf-16": (line().decode().encode("utf-16-le"), "invalid_json_line", "not JSON"),
    "half a surrogate pair": (b'{"custom_id": "\\ud800"}', "invalid_json_line", "not JSON"),
    "no custom_id": (b'{"method": "POST"}', "missing_custom_id", "custom_id is missing"),
    "null custom_id": (line(None), "missing_custom_id", "custom_id is missing"),
    "number custom_id": (line(7), "missing_custom_id", "must be a non-empty string, not 7"),
    "empty custom_id": (line(""), "missing_custom_id", "must be a non-empty string"),
    "duplicate": (line("before"), "duplicate_custom_id", "'before' was already used on line 1"),
    "method": (line(method="GET"), "invalid_method", "method must be POST, not 'GET'"),
    "url": (line(url="/v1/embeddings"), "invalid_url", "not '/v1/embeddings'"),
    "url list": (line(url=[]), "invalid_url", "/v1/chat/completions, /v1/completions"),
    "no url": (b'{"custom_id": "x", "body": {"prompt": "Hi"}}', "invalid_url", "not None"),
    "no body": (b'{"custom_id": "x", "url": "/v1/completions"}', "invalid_request", "body must be an object"),
    "model": (line(model=3), "invalid_request", "body.model must be"),
    "no messages": (line(url=CHAT_URL, messages=None), "invalid_request", "body.messages is missing"),
    "empty messages": (chat([]), "invalid_request", "body.messages must not be empty"),
    "messages text": (chat("Hi"), "invalid_request", "body.messages must be a list"),
    "turn text": (chat(["Hi"]), "invalid_request", "body.messages[0] must be an object"),
    "no role": (chat([{"content": "Hi"}]), "invalid_request", "body.messages[0].role"),
    "no content": (
        chat([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]),
        "invalid_request",
        "body.messages[1].content must be a string",
    ),
    "image": (
        chat([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        "unsupported_parameter",
        "body.messages[0].content[0].type 'image_url'",
    ),
    "part without text": (
        chat([{"role": "user", "content": [{"type": "text"}]}]),
        "invalid_request",
        "body.messages[0].content[0].text must be",
    ),
    "tool calls": (
        chat([{"role": "assistant", "content": "", "tool_calls": [{}]}]),
        "unsupported_parameter",
        "body.messages[0].tool_calls",
    ),
    "empty prompt": (line(prompt=""), "invalid_request", "body.prompt"),
    "no prompt": (line(prompt=None), "invalid_request", "body.prompt is missing"),
    "empty prompt list": (line(prompt=[]), "invalid_request", "body.prompt"),
    "several prompts": (line(prompt=["a", "b"]), "unsupported_parameter", "body.prompt holds 2 prompts"),
    "prompt object": (line(prompt={"a": 1}), "invalid_request", "body.prompt must be"),
    "token text": (line(prompt=[1, "a"]), "invalid_request", "body.prompt[1] must be a token id"),
    "negative token": (line(prompt=[-1]), "invalid_request", "body.prompt[0] must be a token id"),
    "huge token": (line(input_ids=[2**31]), "invalid_request", "body.input_ids[0] must be a token id"),
    "true token": (line(prompt=[True]), "invalid_request", "body.prompt[0] must be a token id"),
    "prompt and ids": (line(prompt="a", input_ids=[1]), "invalid_request", "give one of them"),
    "max_tokens 0": (line(max_tokens=0), "invalid_request", "body.max_tokens must be a whole number from 1"),
    "max_tokens text": (line(max_tokens="9"), "invalid_request", "body.max_tokens must be"),
    "max_tokens fraction": (line(max_tokens=1.5), "invalid_request", "body.max_tokens must be"),
    "max_completion_tokens 0": (chat(max_completion_tokens=0), "invalid_request", "body.max_completion_tokens must"),
    "two limits": (chat(max_tokens=5, max_completion_tokens=6), "invalid_request", "differ; give one"),
    "nan": (line(temperature=float("nan")), "invalid_json_line", "body.temperature must be a finite number"),
    "infinity": (line(top_p=float("inf")), "invalid_json_line", "body.top_p must be a finite number"),
    "nan in a list": (line(prompt=[1, float("nan")]), "invalid_json_line", "body.prompt[1] must be a finite"),
    "1e999": (line(seed=5).replace(b"5", b"1e999"), "invalid_json_line", "body.seed must be a finite number"),
    "temperature": (line(temperature=-1), "invalid_request", "body.temperature must be a number from 0"),
    "temperature text": (line(temperature="hot"), "invalid_request", "body.temperature must be a number"),
    "temperature 1e400": (line(temperature=10**400), "invalid_request", "body.temperature"),
    "top_p": (line(top_p=0), "invalid_request", "body.top_p must be above 0"),
    "top_k": (line(top_k=-5), "invalid_request", "body.top_k must be"),
    "seed": (line(seed=2**63), "invalid_request", "body.seed must be"),
    "stop": (line(stop=[1]), "invalid_request", "body.stop must be"),
    "empty stop": (line(stop=""), "invalid_request", "body.stop must not hold an empty string"),
    "unknown": (line(temprature=1), "unsupported_parameter", "body.temprature is not a known parameter"),
    "unknown null": (line(temprature=None), "unsupported_parameter", "body.temprature"),
    "messages in a completion": (line(messages=[]), "unsupported_parameter", "body.messages"),
    "prompt in a chat": (chat(prompt="a"), "unsupported_parameter", "body.prompt"),
    "n": (line(n=0), "invalid_request", "body.n must be a whole number from 1"),
    "best_of": (line(best_of=2), "unsupported_parameter", "body.best_of is not offered"),
    "logprobs true": (line(logprobs=True), "invalid_request", "body.logprobs must be a whole number from 0 to 5"),
    "logprobs 6": (line(logprobs=6), "invalid_request", "body.logprobs must be a whole number from 0 to 5"),
    "chat logprobs 1": (chat(logprobs=1), "invalid_request", "body.logprobs must be true or false"),
    "top_logprobs alone": (chat(top_logprobs=2), "invalid_request", "body.top_logprobs is 2, but logprobs is not"),
    "top_logprobs": (chat(logprobs=True, top_logprobs=21), "invalid_request", "body.top_logprobs must be a whole"),
    "completion top_logprobs": (line(top_logprobs=2), "unsupported_parameter", "body.top_logprobs"),
    "echo in a chat": (chat(echo=True), "unsupported_parameter", "body.echo"),
    "echo": (line(echo=1), "invalid_request", "body.echo must be true or false"),
    "echo with logprobs": (line(echo=True, logprobs=0), "unsupported_parameter", "body.echo with logprobs"),
    "min_tokens": (line(min_tokens=17), "invalid_request", "body.min_tokens must be at most max_tokens"),
    "stream": (chat(stream=True), "unsupported_parameter", "body.stream is not offered in a batch file, whose"),
    "presence_penalty": (chat(presence_penalty=2.5), "invalid_request", "body.presence_penalty must be"),
    "repetition_penalty": (chat(repetition_penalty=0), "invalid_request", "body.repetition_penalty must be above 0"),
    "penalty 1e400": (chat(frequency_penalty=10**400), "invalid_request", "body.frequency_penalty"),
    "response_format": (chat(response_format={"type": "json_object"}), "unsupported_parameter", "response_format"),
    "tools": (chat(tools=[{"type": "function"}]), "unsupported_parameter", "body.tools"),
    "suffix": (line(suffix="."), "unsupported_parameter", "body.suffix"),
    "logit_bias": (line(logit_bias={"5": -101}), "invalid_request", "body.logit_bias of token 5 must be"),
    "logit_bias word": (line(logit_bias={"the": 1}), "invalid_request", "body.logit_bias must have token ids as keys"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_and_the_others_are_read(name: str):
    content, code, message = BAD[name]
    before, bad, after = read(BEFORE, content, AFTER)
    assert isinstance(bad, BadLine)
    assert bad.number == 2
    assert code in (bad.code, "*")
    assert message in bad.message
    assert str(bad).startswith("line 2: ")
    assert [before.custom_id, after.custom_id] == ["before", "after"]
    assert isinstance(before, BatchLine)
    assert isinstance(after, BatchLine)
    assert (before.number, after.number) == (1, 3)


@pytest.mark.parametrize("name", ["nan", "1e999", "temperature", "best_of", "method", "url", "duplicate"])
def test_a_bad_line_keeps_its_custom_id(name: str):
    _, bad, _ = read(BEFORE, BAD[name][0], AFTER)
    assert bad.custom_id == ("before" if name == "duplicate" else "x")


def test_a_line_with_bytes_that_are_not_utf8_keeps_its_custom_id():
    [bad] = read(b'{"custom_id": "x", "body": {"prompt": "caf\xe9"}}')
    assert bad.custom_id == "x"


def test_a_bad_line_claims_its_custom_id_too():
    first, second, third = read(line("a", temperature=float("nan")), line("a"), line("b"))
    assert isinstance(first, BadLine)
    assert isinstance(second, BadLine)
    assert "already used on line 1" in second.message
    assert isinstance(third, BatchLine)


def test_byte_order_marks_crlf_and_blank_lines_are_accepted():
    content = codecs.BOM_UTF8 + line("a") + b"\r\n\r\n  \t \n" + codecs.BOM_UTF8 + line("b") + b"\r\n" + line("c")
    items = list(read_batch(io.BytesIO(content)))
    assert [(item.number, item.custom_id) for item in items] == [(1, "a"), (4, "b"), (5, "c")]
    assert all(isinstance(item, BatchLine) for item in items)


def test_a_line_above_the_limit_is_skipped():
    before, bad, after = read(BEFORE, line(prompt="a" * 2000), AFTER, max_line_bytes=1000)
    assert isinstance(bad, BadLine)
    assert (bad.number, bad.code, bad.custom_id) == (2, "line_too_long", None)
    assert "1000 bytes" in bad.message
    assert isinstance(before, BatchLine)
    assert isinstance(after, BatchLine)
    [unended] = read(line(prompt="a" * 2000), end=b"", max_line_bytes=1000)
    assert isinstance(unended, BadLine)


def test_a_line_at_the_limit_is_read():
    content = line("x")
    for end in (b"\n", b""):
        [item] = read(content, end=end, max_line_bytes=len(content))
        assert isinstance(item, BatchLine)


def test_a_line_above_the_limit_is_not_held_in_memory(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.truncate(64 << 20)  # NULs, without a newline
    with path.open("rb") as file:
        tracemalloc.start()
        [bad] = read_batch(file, max_line_bytes=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert isinstance(bad, BadLine)
    assert peak < 8 << 20


def test_a_ten_megabyte_line_is_a_request_like_any_other():
    item, after = read(line(prompt="a" * 10_000_000), AFTER)
    assert isinstance(item, BatchLine)
    assert item.request.prompt is not None
    assert len(item.request.prompt) == 10_000_000
    assert isinstance(after, BatchLine)


def test_an_error_message_does_not_quote_megabytes():
    [bad] = read(line(temperature="a" * 1_000_000))
    assert isinstance(bad, BadLine)
    assert len(bad.message) < 500


def test_reading_is_lazy():
    file = io.BytesIO(BEFORE + b"\n" + AFTER)
    next(read_batch(file))
    assert file.read() == AFTER


def test_a_chat_request_has_all_its_parameters():
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": []},
    ]
    item = read_one(
        chat(turns, model="m", max_completion_tokens=9, temperature=0, top_p=0.5, top_k=4, stop="\n", seed=-3)
    )
    params = item.request.params
    assert (item.number, item.custom_id, item.kind, item.model) == (1, "x", RequestKind.CHAT, "m")
    assert item.request.messages == (
        ChatMessage(role="system", content="Be short."),
        ChatMessage(role="user", content="a\nb"),
        ChatMessage(role="assistant", content="c"),
    )
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (9, 0, 0.5, 4)
    assert (params.stop, params.seed) == (("\n",), -3)


def test_defaults_are_those_of_the_endpoint():
    completion, conversation = read_one(line()), read_one(chat())
    assert completion.request.params.max_tokens == 16
    assert conversation.request.params.max_tokens == 256
    assert completion.request.params.temperature == 1.0
    assert completion.model is None
    assert completion.kind is RequestKind.COMPLETION


def test_null_is_the_same_as_leaving_out():
    body = dict.fromkeys(["max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "model", "n", "tools"])
    assert read_one(chat(**body)) == read_one(chat())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "a"}, ("a", None)),
        ({"prompt": ["a"]}, ("a", None)),
        ({"prompt": [5, 6]}, (None, (5, 6))),
        ({"prompt": [[5, 6]]}, (None, (5, 6))),
        ({"input_ids": [5, 6]}, (None, (5, 6))),
    ],
)
def test_a_prompt_may_be_text_or_token_ids(body: dict[str, Any], expected: Any):
    request = read_one(line(**body)).request
    assert (request.prompt, request.input_ids) == expected


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_new_tokens"])
def test_every_name_of_the_token_limit_is_accepted(name: str):
    assert read_one(line(**{name: 7})).request.params.max_tokens == 7


def test_parameters_at_their_neutral_value_and_metadata_are_accepted():
    neutral = {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "logprobs": False,
        "top_logprobs": None,
        "ignore_eos": False,
        "repetition_penalty": None,
        "best_of": 1,
        "logit_bias": {},
        "stream": False,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "user": "u1",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
    }
    assert read_one(chat(**neutral)) == read_one(chat())


FURTHER = {
    "n": 3,
    "min_tokens": 2,
    "stop_token_ids": [5, 6],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "repetition_penalty": 1.1,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {"7": 3, "6": -1},
    "truncate_prompt_tokens": 9,
}


def test_what_vllm_takes_beyond_is_taken():
    expected = SamplingParams(max_tokens=256, logprobs=4, **FURTHER)
    assert read_one(chat(logprobs=True, top_logprobs=4, **FURTHER)).request.params == expected
    assert expected.logit_bias == ((6, -1.0), (7, 3.0))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=20), 20),
        (chat(top_logprobs=0), None),
        (line(logprobs=0), 0),
        (line(logprobs=5), 5),
        (line(logprobs=False), None),
    ],
)
def test_log_probabilities_are_asked_for_as_each_endpoint_does(content: bytes, expected: int | None):
    assert read_one(content).request.params.logprobs == expected


def test_a_completion_may_echo_its_prompt():
    assert read_one(line(echo=True)).request.params.echo


def test_method_may_be_left_out():
    assert read_one(line(method=None)) == read_one(line())


def test_the_example_file_is_good():
    with EXAMPLES.open("rb") as file:
        items = list(read_batch(file))
    assert len(items) == 24
    assert [item for item in items if isinstance(item, BadLine)] == []
    assert len({item.custom_id for item in items}) == 24


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
bodies = st.dictionaries(
    st.sampled_from(["prompt", "messages", "input_ids", "max_tokens", "temperature", "stop", "seed", "n", "model"])
    | st.text(),
    json_values,
    max_size=4,
)
lines = st.binary() | st.builds(
    encoded,
    custom_id=st.sampled_from(["a", "b", "c"]) | json_values,
    method=st.just("POST") | json_values,
    url=st.sampled_from([CHAT_URL, TEXT_URL]) | json_values,
    body=bodies | json_values,
)


# The first draw of text builds tables of Unicode, which takes seconds.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.lists(lines, max_size=6).map(b"\n".join))
def test_any_bytes_give_one_item_for_each_line_that_is_not_blank(content: bytes):
    items = list(read_batch(io.BytesIO(content), max_line_bytes=300))
    numbers = [
        number
        for number, text in enumerate(content.split(b"\n"), 1)
        if text.removeprefix(codecs.BOM_UTF8).strip() or len(text) > 300
    ]
    assert [item.number for item in items] == numbers
    good = [item.custom_id for item in items if isinstance(item, BatchLine)]
    assert len(good) == len(set(good))
    assert all(item.message for item in items if isinstance(item, BadLine))
