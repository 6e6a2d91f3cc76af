"""Output lines, byte for byte as the golden files have them."""

import json
from pathlib import Path

from broker.messages import (
    Alternative,
    Choice,
    FinishReason,
    Output,
    OutputSource,
    Request,
    SamplingParams,
    TokenLogprob,
    Usage,
    failed_output,
)
from driver.batch_file import (
    BadLine,
    BatchLine,
    RequestKind,
    bad_line_result,
    is_failure,
    result_line,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
JOB = "5f1c7a52-0c0e-4c55-9b9c-7d1e7f3f8a10"


def item(kind: RequestKind) -> BatchLine:
    return BatchLine(
        number=12,
        custom_id="größe-1",
        kind=kind,
        model=None,
        request=Request(params=SamplingParams(), prompt="Hi"),
    )


def result(kind: RequestKind, output: Output) -> bytes:
    return result_line(item(kind), output, job_id=JOB, model_name="smollm2-135m", created=1790000000)


def output(reason: FinishReason) -> Output:
    return Output(
        index=3,
        text='Say "hi",\nthen \u2028 wave 👋',
        token_ids=(1, 2, 3),
        finish_reason=reason,
        usage=Usage(prompt_tokens=11, completion_tokens=4),
        worker_id="w1",
    )


def golden(name: str) -> bytes:
    return (GOLDEN / f"batch_output_{name}.jsonl").read_bytes()


def test_a_chat_answer():
    assert result(RequestKind.CHAT, output(FinishReason.STOP)) == golden("chat")


def test_a_completion_answer():
    assert result(RequestKind.COMPLETION, output(FinishReason.LENGTH)) == golden("completion")


def answered(kind: RequestKind, **fields: object) -> dict:
    """The choices of an answer with these fields of its output."""
    answer = Output(
        index=3, finish_reason=FinishReason.STOP, usage=Usage(prompt_tokens=2, completion_tokens=5), **fields
    )
    return json.loads(result(kind, answer))["response"]["body"]["choices"]


TWO = (
    Choice(text="a", finish_reason=FinishReason.STOP),
    Choice(text="b", finish_reason=FinishReason.LENGTH),
)
LOGPROBS = (
    TokenLogprob(
        token_id=1, logprob=-0.5, text=" hé", alternatives=(Alternative(token_id=2, logprob=-0.25, text="x"),)
    ),
    TokenLogprob(token_id=3, logprob=-1.5, text="\ufffd"),
)


def test_several_texts_are_as_many_choices():
    chat = answered(RequestKind.CHAT, text="a", choices=TWO)
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in chat] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    assert [(c["index"], c["text"]) for c in answered(RequestKind.COMPLETION, choices=TWO)] == [(0, "a"), (1, "b")]


def test_log_probabilities_of_a_chat():
    [choice] = answered(RequestKind.CHAT, logprobs=LOGPROBS)
    assert choice["logprobs"] == {
        "content": [
            {
                "token": " hé",
                "logprob": -0.5,
                "bytes": [32, 104, 195, 169],
                "top_logprobs": [{"token": "x", "logprob": -0.25, "bytes": [120]}],
            },
            {"token": "\ufffd", "logprob": -1.5, "bytes": None, "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_log_probabilities_of_a_completion():
    [choice] = answered(RequestKind.COMPLETION, logprobs=LOGPROBS)
    assert choice["logprobs"] == {
        "tokens": [" hé", "\ufffd"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"x": -0.25, " hé": -0.5}, {"\ufffd": -1.5}],
        "text_offset": [0, 3],
    }


def test_a_failed_request():
    failed = failed_output(3, "context_length_exceeded", "9000 tokens do not fit into 8192")
    assert result(RequestKind.CHAT, failed) == golden("failed")


def test_bad_lines():
    bad = (
        BadLine(number=7, custom_id=None, code="invalid_json_line", message="not JSON"),
        BadLine(number=8, custom_id="größe-1", code="duplicate_custom_id", message="used twice"),
    )
    assert b"".join(map(bad_line_result, bad)) == golden("bad_lines")


def test_an_error_without_a_reason_is_still_a_failure():
    broken = Output(index=0, finish_reason=FinishReason.ERROR)
    assert is_failure(broken)
    line = json.loads(result(RequestKind.CHAT, broken))
    assert line["response"] is None
    assert line["error"]["code"] == "internal_error"


def test_every_result_is_one_line():
    for reason in (FinishReason.STOP, FinishReason.LENGTH):
        line = result(RequestKind.CHAT, output(reason))
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert not is_failure(output(reason))


def test_ids_are_unique_for_each_request_of_each_job():
    def ids(job_id: str, index: int) -> set[str]:
        answer = Output(index=index, finish_reason=FinishReason.STOP)
        line = json.loads(result_line(item(RequestKind.CHAT), answer, job_id=job_id, model_name="m", created=1))
        return {line["id"], line["response"]["request_id"], line["response"]["body"]["id"]}

    assert ids("a", 1) == ids("a", 1)
    assert len(ids("a", 1) | ids("a", 2) | ids("b", 1)) == 9


def test_what_was_not_generated_for_the_line_says_so_in_its_usage():
    usage = Usage(prompt_tokens=2, completion_tokens=5)
    generated = Output(index=3, text="x", finish_reason=FinishReason.STOP, usage=usage)
    shared = Output(index=3, text="x", finish_reason=FinishReason.STOP, usage=usage, source=OutputSource.SHARED)
    counts = {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    for output, expected in ((generated, counts), (shared, counts | {"source": "shared"})):
        line = json.loads(result(RequestKind.CHAT, output))
        assert line["response"]["body"]["usage"] == expected
