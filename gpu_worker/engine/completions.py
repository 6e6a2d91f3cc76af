"""When a request is over, and the completion made of it: the same rules for every engine."""

from collections.abc import Collection, Sequence

from broker.messages import FinishReason, OutputError, Request, Usage
from gpu_worker.engine.base import Completion
from gpu_worker.engine.text import Decode, StopSearch


def is_over(tokens: Sequence[int], max_tokens: int, stop: StopSearch | None, ends: Collection[int]) -> bool:
    """Whether generation ends with these tokens, which are all that the request has so far."""
    if stop is not None and stop.push(tokens):
        return True
    return len(tokens) >= max_tokens or (bool(tokens) and tokens[-1] in ends)


def completion_of(
    request_id: str,
    request: Request,
    *,
    prompt_ids: tuple[int, ...],
    tokens: tuple[int, ...],
    stop: StopSearch | None,
    ends: Collection[int],
    decode: Decode,
) -> Completion:
    """The completion of a request that is over.

    The token ids are all that were generated, the end token too, up to the one that completed a stop string; the
    text has neither end token nor stop string.
    """
    stopped = stop is not None and stop.push(tokens)
    if stop is not None and stopped:
        tokens, text = tuple(stop.kept), stop.text()
    else:
        tokens = tokens[: request.params.max_tokens]
        text = decode(tokens)
    stopped = stopped or (bool(tokens) and tokens[-1] in ends)
    return Completion(
        request_id=request_id,
        text=text,
        token_ids=tokens,
        finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
        usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(tokens)),
        input_ids=prompt_ids if request.return_input_ids else (),
    )


def failure(request_id: str, code: str, message: str) -> Completion:
    """The completion of a request that gives no text."""
    return Completion(
        request_id=request_id,
        finish_reason=FinishReason.ERROR,
        error=OutputError(code=code, message=message),
    )
