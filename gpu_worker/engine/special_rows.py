"""The rows of a step that need more than sampling: scores shaped, tokens forced, log probabilities noted."""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from gpu_worker.engine.rows import Likely, RowSampling


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    sampling: RowSampling
    place: int  # of the token to come, in the text


class SpecialRows:
    """Those of one step. Empty in most, and then nothing is done."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, index: int, sampling: RowSampling, state: Any) -> None:
        """Take the row of a request, whose `state` is the library's, if it needs anything."""
        if not sampling.in_python:
            return
        place = state.position_offset - sampling.prompt_tokens
        self._rows.append(_Row(index=index, sampling=sampling, place=place))
        if sampling.shaper is not None:
            sampling.shaper.follow(place, lambda start: _text_from(state, sampling.prompt_tokens + start))

    def shaped(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores [rows, vocabulary] in which each request's wishes are met; `scores` itself is left as it is."""
        rows = [row for row in self._rows if row.sampling.shaper is not None]
        if not rows:
            return scores
        places = _places(rows, scores)
        own = scores[places]
        for row, row_scores in zip(rows, own, strict=True):
            assert row.sampling.shaper is not None
            row.sampling.shaper.shape(row_scores)
        return scores.index_copy(0, places, own)

    def forced(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores in which a token that was picked in an earlier run wins again."""
        rows = [row for row in self._rows if row.place < len(row.sampling.forced)]
        if not rows:
            return scores
        places = _places(rows, scores)
        tokens = torch.tensor([row.sampling.forced[row.place] for row in rows], device=scores.device)
        return scores.index_put((places, tokens), torch.tensor(torch.inf, device=scores.device, dtype=scores.dtype))

    def note(self, raw: torch.Tensor, picked: torch.Tensor) -> None:
        """Note how likely the picked tokens were by the model's own scores `raw`; in `picked` each is the greatest."""
        rows = [row for row in self._rows if row.sampling.record is not None]
        if not rows:
            return
        places = _places(rows, raw)
        logprobs = raw[places].log_softmax(-1)
        tokens = picked[places].argmax(-1, keepdim=True)
        chosen = _likely(tokens, logprobs.gather(-1, tokens))
        records = [row.sampling.record for row in rows if row.sampling.record is not None]
        best = logprobs.topk(max(record.alternatives for record in records), -1)
        likeliest = _likely(best.indices, best.values)
        for place, (row, record) in enumerate(zip(rows, records, strict=True)):
            record.put(row.place, chosen[place][0], likeliest[place][: record.alternatives])


def _places(rows: Sequence[_Row], scores: torch.Tensor) -> torch.Tensor:
    return torch.tensor([row.index for row in rows], device=scores.device)


def _likely(tokens: torch.Tensor, logprobs: torch.Tensor) -> list[tuple[Likely, ...]]:
    pairs = zip(tokens.tolist(), logprobs.tolist(), strict=True)
    return [tuple(zip(ids, values, strict=True)) for ids, values in pairs]


def _text_from(state: Any, start: int) -> list[int]:
    """The tokens of a sequence from `start` on, the prompt's first being 0.

    A request that was resumed, or that lost its place in the cache, carries generated tokens behind its prompt.
    """
    initial = len(state.initial_tokens)
    return [*state.initial_tokens[start:], *state.generated_tokens[max(0, start - initial) :]]
