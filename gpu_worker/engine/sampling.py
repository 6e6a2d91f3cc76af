"""Sampling that is each request's own: one processor list for transformers' continuous batching.

The library knows one `do_sample` for all and draws from one global generator. Here every row's token is picked by its
own seed (`picking.py`). The library then runs greedily over scores in which the picked token wins; rows of greedy
requests are not touched at all.
"""

from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)

from gpu_worker.engine.limits import StepSize
from gpu_worker.engine.picking import draw, pick_tokens
from gpu_worker.engine.rows import GREEDY, RowSampling
from gpu_worker.engine.special_rows import SpecialRows

_TEMPERATURE, _TOP_P, _TOP_K, _DRAW = range(4)


class PerRequestSampling(ContinuousBatchingLogitsProcessorList):
    """The processor list to install in a manager; a request brings its `RowSampling` as the keyword `sampling`.

    `eager` says that the model runs step by step in Python, with neither CUDA graphs nor torch.compile: then the
    work is done for the rows that need it only. Requests that need more than sampling (`RowSampling.in_python`) must
    come to an eager loop. `steps` and `tokens` count what the loop has prepared so far; `last` is the latest step.
    """

    def __init__(self, *, eager: bool = True) -> None:
        super().__init__(LogitsProcessorList())
        self.eager = eager
        self.steps = 0
        self.tokens = 0
        self.last = StepSize()
        self.tensors_required = 4
        self.do_processing = True
        self._sampled_rows: list[int] = []
        self._filtered = False
        self._special = SpecialRows()

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accept what the engine passes; it has been validated with the request."""

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Rows without a request, as in padding and in warm-up, are greedy."""
        int32_tensor[:] = _argument_table([(GREEDY, 0)]).to(int32_tensor.device)

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Write one column for each request that gets a token in this step.

        The library has advanced `position_offset` by then: it is the place of the token to come.
        """
        rows: list[tuple[RowSampling, int]] = []
        self._special = SpecialRows()
        for future in requests_in_batch:
            if future.has_new_token:
                state = future.state
                sampling: RowSampling = state.logit_processor_kwargs.get("sampling", GREEDY)
                self._special.add(len(rows), sampling, state)
                rows.append((sampling, state.position_offset))
        if self._special and not self.eager:
            raise RuntimeError("a request with penalties or log probabilities came to a loop with CUDA graphs")
        self.steps += 1
        self.last = _size(requests_in_batch)
        self.tokens += len(rows)
        self._sampled_rows = [i for i, (row, _) in enumerate(rows) if row.temperature > 0]
        self._filtered = any(row.top_k > 0 or row.top_p < 1 for row, _ in rows)
        if self._sampled_rows or (rows and not self.eager):  # who reads no argument needs none
            arg_storage[:, : len(rows)] = _argument_table(rows).to(arg_storage.device)
        return arg_storage

    def __call__(
        self, _input_ids: torch.Tensor, scores: torch.Tensor, logits_processor_args: torch.Tensor
    ) -> torch.Tensor:
        """Scores in which each sampled row's picked token is the greatest. Greedy rows are as they were."""
        if not self.eager:
            return _promote(scores, logits_processor_args[:, : scores.size(0)], filtered=True, eager=False)
        if not self._special:
            return self._sampled(scores, logits_processor_args)
        picked = self._special.forced(self._sampled(self._special.shaped(scores), logits_processor_args))
        self._special.note(scores, picked)
        return picked

    def _sampled(self, scores: torch.Tensor, arguments: torch.Tensor) -> torch.Tensor:
        if not self._sampled_rows:
            return scores
        rows = torch.tensor(self._sampled_rows, device=scores.device)
        promoted = _promote(scores[rows], arguments[:, rows], filtered=self._filtered, eager=True)
        return scores.index_copy(0, rows, promoted)


def _size(requests_in_batch: list[Any]) -> StepSize:
    return StepSize(
        rows=len(requests_in_batch),
        tokens=sum(future.query_length for future in requests_in_batch),
        first=requests_in_batch[0].state.request_id if requests_in_batch else "",
    )


def _promote(scores: torch.Tensor, arguments: torch.Tensor, *, filtered: bool, eager: bool) -> torch.Tensor:
    temperature = arguments[_TEMPERATURE].view(torch.float32)
    sampled = temperature > 0
    picked = pick_tokens(
        scores,
        temperature=torch.where(sampled, temperature, 1.0),
        top_p=arguments[_TOP_P].view(torch.float32),
        top_k=arguments[_TOP_K],
        draws=arguments[_DRAW],
        filtered=filtered,
        eager=eager,
    ).unsqueeze(-1)
    winning = torch.where(sampled.unsqueeze(-1), torch.inf, scores.gather(-1, picked))
    return scores.scatter(-1, picked, winning)


def _argument_table(rows: list[tuple[RowSampling, int]]) -> torch.Tensor:
    """Arguments as the library stores them: int32 [argument, row], floats by their bits."""
    floats = torch.tensor([[row.temperature for row, _ in rows], [row.top_p for row, _ in rows]], dtype=torch.float32)
    integers = torch.tensor(
        [
            [row.top_k for row, _ in rows],
            [draw(row.seed, at) if row.temperature > 0 else 0 for row, at in rows],
        ],
        dtype=torch.int32,
    )
    return torch.cat((floats.view(torch.int32), integers))
