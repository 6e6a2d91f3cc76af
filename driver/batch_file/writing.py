"""Batch output: the one JSON line that answers a batch input line, as OpenAI's Batch API writes it.

Pure: the same request, output, job and time give the same bytes. A failed line has an `error` and no
`response`, and its message begins with the number of the input line.
"""

from typing import Literal

import msgspec

from broker.messages import Choice, FinishReason, Output, OutputError, OutputSource
from driver.batch_file.items import BadLine, BatchLine, RequestKind
from driver.batch_file.logprobs import ChatLogprobs, TextLogprobs, chat_logprobs, text_logprobs

ID_PREFIX = "batch_req_"
BAD_LINE_ID_PREFIX = f"{ID_PREFIX}line_"


class _Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    source: str = OutputSource.GENERATED.value  # ours: where the text comes from, if it was not generated for this line


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str


class _ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: _Message
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class _TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    text: str
    finish_reason: str
    logprobs: TextLogprobs | None = None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    choices: tuple[_ChatChoice, ...] | tuple[_TextChoice, ...]
    usage: _Usage


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    status_code: int = 200
    request_id: str
    body: _Body


class _ResultLine(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    custom_id: str | None
    response: _Response | None = None
    error: OutputError | None = None


def result_line(line: BatchLine, output: Output, *, job_id: str, model_name: str, created: int) -> bytes:
    """The answer to a request that was run, with its newline.

    The ids in it are made of `job_id` and the output's index, so that they are unique over the jobs that
    fill one file. `model_name` is the model that served it, `created` is in Unix seconds.
    """
    suffix = f"{job_id}_{output.index}"
    error = _error(line, output)
    response = None
    if error is None:
        body = _body(line.kind, output, suffix, model_name, created)
        response = _Response(request_id=f"req_{suffix}", body=body)
    return _encode(_ResultLine(id=f"{ID_PREFIX}{suffix}", custom_id=line.custom_id, response=response, error=error))


def bad_line_result(bad: BadLine) -> bytes:
    """The answer to a line that could not be run, with its newline. Its id is made of the line number."""
    error = OutputError(code=bad.code, message=str(bad))
    return _encode(_ResultLine(id=f"{BAD_LINE_ID_PREFIX}{bad.number}", custom_id=bad.custom_id, error=error))


def is_failure(output: Output) -> bool:
    """Whether the output has an error in place of a text."""
    return output.error is not None or output.finish_reason is FinishReason.ERROR


def _error(line: BatchLine, output: Output) -> OutputError | None:
    if not is_failure(output):
        return None
    error = output.error or OutputError(code="internal_error", message="failed without a reason")
    return OutputError(code=error.code, message=f"line {line.number}: {error.message}")


def _body(kind: RequestKind, output: Output, suffix: str, model_name: str, created: int) -> _Body:
    chat = kind is RequestKind.CHAT
    choices = enumerate(output.all_choices())
    return _Body(
        id=f"{'chatcmpl' if chat else 'cmpl'}-{suffix}",
        object="chat.completion" if chat else "text_completion",
        created=created,
        model=model_name,
        choices=tuple(_chat_choice(i, c) for i, c in choices)
        if chat
        else tuple(_text_choice(i, c) for i, c in choices),
        usage=_Usage(
            prompt_tokens=output.usage.prompt_tokens,
            completion_tokens=output.usage.completion_tokens,
            total_tokens=output.usage.total_tokens,
            source=output.source.value,
        ),
    )


def _chat_choice(index: int, choice: Choice) -> _ChatChoice:
    return _ChatChoice(
        index=index,
        message=_Message(content=choice.text),
        finish_reason=choice.finish_reason.value,
        logprobs=chat_logprobs(choice.logprobs),
    )


def _text_choice(index: int, choice: Choice) -> _TextChoice:
    return _TextChoice(
        index=index,
        text=choice.text,
        finish_reason=choice.finish_reason.value,
        logprobs=text_logprobs(choice.logprobs),
    )


def _encode(line: _ResultLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"
