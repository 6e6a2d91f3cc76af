"""What the `commit` command is given of each output, and the sum of its replies. Pure."""

from collections.abc import Sequence
from typing import Any

from broker import codec
from broker.messages import Output
from broker.records import CommitResult


def fields(outputs: Sequence[Output]) -> list[Any]:
    """Outputs as `commit` takes them: the facts of all, and each one's payload.

    The facts are index, whether it failed, and tokens of prompt and text.
    """
    facts: list[int] = []
    for output in outputs:
        usage = output.usage
        facts += (output.index, int(output.error is not None), usage.prompt_tokens, usage.completion_tokens)
    return [codec.pack(facts), *map(codec.encode, outputs)]


def added(result: CommitResult, reply: list[int]) -> tuple[CommitResult, int]:
    """A result with a further reply, and how many outputs that was for: a call may end early."""
    accepted, dropped, job_done, shared, seen = reply
    total = CommitResult(
        accepted=result.accepted + accepted,
        dropped=result.dropped + dropped,
        job_done=result.job_done or bool(job_done),
        shared=result.shared + shared,
    )
    return total, seen
