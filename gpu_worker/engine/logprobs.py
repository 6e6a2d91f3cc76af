"""Log probabilities as they leave the engine: with the text of each token."""

import itertools
from collections.abc import Callable

from broker.messages import Alternative, TokenLogprob
from gpu_worker.engine.rows import LogprobRecord

_LEAST = -9999.0  # in place of minus infinity, which JSON does not have; vLLM's number


def token_logprobs(record: LogprobRecord, count: int, piece: Callable[[int], str]) -> tuple[TokenLogprob, ...]:
    """Those of the first `count` tokens; `piece` gives the text of a token."""
    return tuple(
        TokenLogprob(
            token_id=token,
            logprob=max(logprob, _LEAST),
            text=piece(token),
            alternatives=tuple(
                Alternative(token_id=other, logprob=max(likely, _LEAST), text=piece(other))
                for other, likely in likeliest
            ),
        )
        for (token, logprob), likeliest in itertools.islice(record.entries, count)
    )
