"""Rows that decode together with the model's ordinary cache, each padded on the left to the length of the longest.

The cache grows on whatever device each layer is on, so that a model may be spread over several. Rows come and go: what
joins is padded, and what all rows have as padding is cut off. A row's own values do not depend on the padding.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from gpu_worker.engine.rows import RowSampling


@dataclass(slots=True, kw_only=True, eq=False)
class PaddedRow:
    """A request in the batch. Its names for what `PerRequestSampling` reads are the library's."""

    request_id: str
    initial_tokens: Sequence[int]
    max_new_tokens: int
    ends: Collection[int]
    streaming: bool
    logit_processor_kwargs: dict[str, RowSampling]
    generated_tokens: list[int] = field(default_factory=list[int])

    @property
    def position_offset(self) -> int:
        """The place of the token to come."""
        return len(self.initial_tokens) + len(self.generated_tokens)

    @property
    def most_tokens(self) -> int:
        """What it may come to occupy."""
        return len(self.initial_tokens) + self.max_new_tokens

    @property
    def over(self) -> bool:
        """Whether its tokens end it."""
        done = self.generated_tokens
        return len(done) >= self.max_new_tokens or (bool(done) and done[-1] in self.ends)


class PaddedBatch:
    """Some rows and their cache; it holds all their tokens but the last generated ones, which `decode` reads."""

    def __init__(self, model: Any) -> None:
        self.rows: list[PaddedRow] = []
        self._model: Any = model
        self._device = input_device(model)
        self._known = _parameters(type(model))
        # Without the model's config every layer keeps all tokens, those with a sliding window too: the mask has it.
        self._cache = DynamicCache()
        self._mask = torch.zeros((0, 0), dtype=torch.long, device=self._device)  # [rows, length]

    @property
    def length(self) -> int:
        """Places of each row, padding and tokens."""
        return self._mask.size(1)

    @property
    def layers(self) -> Sequence[Any]:
        """The cache's layers, each with `keys` and `values` of shape [rows, heads, length, size]."""
        return self._cache.layers

    def read(self, rows: Sequence[PaddedRow], chunk: int, before: Callable[[int, bool], None]) -> torch.Tensor:
        """Begin with these rows; scores [rows, vocabulary] of the next token of each.

        A single row is read in chunks of so many tokens. `before` is called before each with the tokens of a row in it,
        and whether it is the last.
        """
        longest = max(len(row.initial_tokens) for row in rows)
        ids = [[0] * (longest - len(row.initial_tokens)) + list(row.initial_tokens) for row in rows]
        lengths = torch.tensor([len(row.initial_tokens) for row in rows])
        mask = (torch.arange(longest) >= longest - lengths.unsqueeze(-1)).long().to(self._device)
        tokens = torch.tensor(ids, device=self._device)
        self.rows = list(rows)
        scores = torch.empty(0)
        width = longest if len(rows) > 1 else max(1, chunk)
        for start in range(0, longest, width):
            end = min(start + width, longest)
            before(end - start, end == longest)
            self._mask = mask[:, :end]
            scores = self._forward(tokens[:, start:end])
        return scores

    def decode(self) -> torch.Tensor:
        """Read the last token of each row; scores [rows, vocabulary] of the next."""
        last = torch.tensor([[row.generated_tokens[-1]] for row in self.rows], device=self._device)
        self._mask = pad(self._mask, (0, 1), value=1)
        return self._forward(last)

    def keep(self, wanted: Callable[[PaddedRow], bool]) -> None:
        """Drop the other rows, and the padding that none of those left needs."""
        kept = [place for place, row in enumerate(self.rows) if wanted(row)]
        if len(kept) == len(self.rows):
            return
        self.rows = [self.rows[place] for place in kept]
        if not kept:
            self.clear()
            return
        self._mask = self._mask[kept]
        start = int(self._mask.amax(0).argmax())
        self._mask = self._mask[:, start:]
        for layer in self._held():
            layer.keys, layer.values = layer.keys[kept][..., start:, :], layer.values[kept][..., start:, :]

    def clear(self) -> None:
        """Drop all rows, and free the cache."""
        self.rows = []
        self._cache = DynamicCache()
        self._mask = self._mask[:0, :0]

    def close(self) -> None:
        """Let go of the model, too."""
        self.clear()
        self._model = None

    def join(self, other: "PaddedBatch") -> None:
        """Take another batch's rows behind these; the other one is used up."""
        if not self.rows:
            self.rows, self._cache, self._mask = other.rows, other._cache, other._mask
            return
        length = max(self.length, other.length)
        self._mask = torch.cat([pad(mask, (length - mask.size(1), 0)) for mask in (self._mask, other._mask)])
        for mine, new in zip(self._held(), other._held(), strict=True):
            mine.keys = _stack(mine.keys, new.keys, length)
            mine.values = _stack(mine.values, new.values, length)
            new.keys = new.values = None  # one layer at a time is there twice
        self.rows += other.rows

    def _held(self) -> list[Any]:
        return [layer for layer in self.layers if layer.is_initialized]

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        wanted: dict[str, Any] = {
            "position_ids": (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.size(1) :],
            "logits_to_keep": 1,
        }
        wanted["cache" if "cache" in self._known else "past_key_values"] = self._cache  # as it was before 5.24
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            use_cache=True,
            **{name: value for name, value in wanted.items() if name in self._known},
        )
        return output.logits[:, -1].float()


def input_device(model: Any) -> torch.device:
    """Where a model takes its inputs, and gives its scores back: accelerate's first device of a model on several."""
    places: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    if not places:
        return model.device
    first = next((place for place in places.values() if place not in ("cpu", "disk")), "cpu")
    return torch.device("cuda", first) if isinstance(first, int) else torch.device(first)


@functools.cache
def _parameters(kind: type[Any]) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)


def _stack(first: torch.Tensor, second: torch.Tensor, length: int) -> torch.Tensor:
    return torch.cat([pad(part, (0, 0, length - part.size(-2), 0)) for part in (first, second)])
