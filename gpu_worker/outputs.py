"""From what the engine says of a request to the request's output. Pure."""

import msgspec

from broker.messages import FinishReason, Output, OutputError, failed_output
from broker.records import ClaimedRequest
from gpu_worker.engine.base import Completion


def completed(item: ClaimedRequest, completion: Completion, worker_id: str) -> Output:
    """The output of a request that has ended."""
    return Output(
        index=item.index,
        text=completion.text,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        usage=completion.usage,
        error=completion.error,
        input_ids=completion.input_ids if item.request.return_input_ids else None,
        worker_id=worker_id,
        logprobs=completion.logprobs,
        choices=completion.choices,
    )


def ended(item: ClaimedRequest, partial: Completion | None, error: OutputError, worker_id: str) -> Output:
    """The output of a request that must end early, with what it had so far."""
    empty = Completion(request_id="", finish_reason=FinishReason.ERROR)
    output = completed(item, partial or empty, worker_id)
    return msgspec.structs.replace(output, error=error, finish_reason=FinishReason.ERROR)


def unreadable(index: int, why: str, worker_id: str) -> Output:
    """The output of a request that does not decode."""
    return failed_output(index, "invalid_message", why, worker_id=worker_id)
