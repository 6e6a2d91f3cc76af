"""What was once written to Redis is read for ever, and what is written today is what was.

Beside each message lies what it means, as JSON. The files are never edited: a reader that no longer understands one
of them would strand the jobs of everybody who upgrades.
"""

import json
from pathlib import Path

import msgspec
import pytest

from broker import codec
from broker.chat import ChatMessage
from broker.deltas import TextDelta
from broker.messages import FinishReason, Output, OutputError, OutputSource, Request, SamplingParams, Usage
from broker.records import QuarantinedRequest

FOLDER = Path(__file__).parents[2] / "golden" / "v1"
PARAMS = SamplingParams(max_tokens=32, temperature=0.5, top_p=0.9, top_k=40, stop=("\n", "END"), seed=-7)
TURNS = (ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Why? é"))

MESSAGES = {
    "request_prompt": Request(prompt="The capital of France is", params=SamplingParams()),
    "request_all_parameters": Request(prompt="é", params=PARAMS, return_input_ids=True),
    "request_messages": Request(messages=TURNS, params=SamplingParams(temperature=0)),
    "request_input_ids": Request(input_ids=(1, 300, 70_000), params=SamplingParams(max_tokens=1)),
    "request_stream": Request(prompt="x", params=SamplingParams(seed=1), stream=True),
    "output": Output(
        index=3,
        text=" Paris.",
        token_ids=(7042, 30),
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=5, completion_tokens=2),
        worker_id="gpu0@host",
    ),
    "output_with_input_ids": Output(
        index=0,
        text="x",
        token_ids=(1,),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=2, completion_tokens=1),
        input_ids=(5, 6),
        worker_id="cpu0@host",
    ),
    "output_shared": Output(
        index=4,
        text=" Paris.",
        token_ids=(7042, 30),
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=5, completion_tokens=2),
        worker_id="gpu0@host",
        source=OutputSource.SHARED,
    ),
    "output_failed": Output(
        index=70_000,
        finish_reason=FinishReason.ERROR,
        error=OutputError(code="worker_crash", message="its worker died 3 times"),
        worker_id="gpu0@host",
    ),
    "text_delta": TextDelta(index=3, offset=12, text=" Paris 🙂"),
    "quarantined": QuarantinedRequest(
        job_id="0b5f7c1e-4a0d-4f43-9a53-0d3f9a6a2c11",
        index=12,
        model="smollm2-135m",
        request=Request(prompt="poison", params=PARAMS),
        reason="its worker died 3 times while running it",
        at_ms=1_790_000_000_000,
    ),
}


def read(name, suffix):
    return (FOLDER / f"{name}.{suffix}").read_bytes()


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_is_still_understood(name):
    assert codec.decode(type(MESSAGES[name]), read(name, "msgpack")) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_is_still_written_so(name):
    # By meaning, not by bytes: a struct of more than 15 fields gets a longer map header, however few are sent.
    assert msgspec.msgpack.decode(codec.encode(MESSAGES[name])) == msgspec.msgpack.decode(read(name, "msgpack"))


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_means_what_lies_beside_it(name):
    assert msgspec.msgpack.decode(read(name, "msgpack")) == json.loads(read(name, "json"))


def test_a_checkpoint_is_a_plain_array():
    data = read("checkpoint", "msgpack")
    assert codec.decode(tuple[int, ...], data) == (1, 300, 70_000)
    assert msgspec.msgpack.encode((1, 300, 70_000)) == data
    assert json.loads(read("checkpoint", "json")) == [1, 300, 70_000]


def test_every_golden_message_is_tested():
    assert {path.stem for path in FOLDER.glob("*.msgpack")} == {*MESSAGES, "checkpoint"}
