"""What the loop knows of one request's sampling: a row of each step in which the request gets a token."""

from typing import Any, Self

import msgspec

from gpu_worker.engine.shaping import ScoreShaper

Likely = tuple[int, float]  # token id and log probability


class LogprobRecord:
    """The log probabilities of one request's tokens, by their place in its text."""

    def __init__(self, alternatives: int) -> None:
        self.alternatives = alternatives
        self.entries: list[tuple[Likely, tuple[Likely, ...]]] = []  # of each token, and of the likeliest beside it

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # as with `ScoreShaper`

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, place: int, chosen: Likely, likeliest: tuple[Likely, ...]) -> None:
        """Note the token at a place; one that was noted there before is replaced, as after a broken step."""
        del self.entries[place:]
        self.entries.append((chosen, likeliest))


class RowSampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one request's tokens are picked; the first four fields are those of `SamplingParams`, with the seed settled.

    `forced` are the tokens that the text begins with: they are given again, so that what goes with them is found again.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int
    prompt_tokens: int = 0
    shaper: ScoreShaper | None = None
    record: LogprobRecord | None = None
    forced: tuple[int, ...] = ()

    @property
    def in_python(self) -> bool:
        """Whether it needs work of its own in every step, which a CUDA graph or a compiled model cannot do."""
        return self.shaper is not None or self.record is not None


GREEDY = RowSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
