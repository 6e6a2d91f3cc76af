"""What changes a request's scores before a token is picked: biases, end tokens held back, penalties.

The order and the formulas are vLLM's: biases and held-back tokens first, then the repetition penalty over prompt and
text, then frequency and presence penalty over the text alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec
import torch


class Shaping(msgspec.Struct, frozen=True, kw_only=True):
    """The wishes of one request; token ids are within the vocabulary."""

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    held_back: tuple[int, ...] = ()  # until there are `min_tokens` tokens

    @property
    def penalises(self) -> bool:
        """Whether it matters which tokens there are already."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def neutral(self) -> bool:
        """Whether it changes no score."""
        return not (self.penalises or self.logit_bias or (self.min_tokens and self.held_back))


class ScoreShaper:
    """Shapes one request's scores step by step. It counts each token once, as the text grows."""

    def __init__(self, shaping: Shaping, prompt_ids: Sequence[int]) -> None:
        self._shaping = shaping
        self._prompt_ids = prompt_ids
        self._place = 0  # tokens followed so far
        self._uncounted: list[int] = []
        self._biases: tuple[torch.Tensor, torch.Tensor] | None = None
        self._counts: torch.Tensor | None = None  # of each token in the text
        self._in_prompt: torch.Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # The library copies a request that it pushes out of the cache; the counts stay those of the one request.
        return self

    def follow(self, place: int, text_from: Callable[[int], Sequence[int]]) -> None:
        """Learn of the tokens before `place`, which `text_from` gives from any place of the text on."""
        if not self._shaping.penalises:
            self._place = place
            return
        if place < self._place:  # the loop broke before what it had picked was delivered
            self._place, self._uncounted, self._counts = 0, [], None
        self._uncounted += text_from(self._place)
        self._place = place

    def shape(self, scores: torch.Tensor) -> None:
        """Change the scores of the token at the place that was followed to, shape [vocabulary], as they lie there."""
        shaping = self._shaping
        if shaping.logit_bias:
            scores.index_add_(0, *self._bias_tensors(scores))
        if self._place < shaping.min_tokens and shaping.held_back:
            scores[list(shaping.held_back)] = -torch.inf
        if shaping.penalises:
            self._penalise(scores)

    def _penalise(self, scores: torch.Tensor) -> None:
        counts, in_prompt = self._counted(scores)
        shaping = self._shaping
        if shaping.repetition_penalty != 1:
            penalty = shaping.repetition_penalty
            lower = torch.where(scores < 0, scores * penalty, scores / penalty)
            scores.copy_(torch.where(in_prompt | (counts > 0), lower, scores))
        scores.sub_(counts * shaping.frequency_penalty + (counts > 0) * shaping.presence_penalty)

    def _bias_tensors(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._biases is None:
            tokens, biases = zip(*self._shaping.logit_bias, strict=True)
            values = torch.tensor(biases, device=scores.device, dtype=scores.dtype)
            self._biases = _indices(tokens, scores), values
        return self._biases

    def _counted(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._in_prompt is None:
            self._in_prompt = torch.zeros_like(scores, dtype=torch.bool)
            self._in_prompt[_indices(self._prompt_ids, scores)] = True
        if self._counts is None:
            self._counts = torch.zeros_like(scores)
        if self._uncounted:
            new = _indices(self._uncounted, scores)
            self._counts.index_add_(0, new, torch.ones_like(new, dtype=scores.dtype))
            self._uncounted = []
        return self._counts, self._in_prompt


def _indices(token_ids: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
    return torch.tensor(token_ids, dtype=torch.long, device=scores.device)
