"""From a request to what the loop runs: its prompt, how its tokens are picked, what ends it; or why it cannot run."""

import random
from typing import Any

from broker.messages import Request
from broker.parameters import SamplingParams
from gpu_worker.engine.book import Held
from gpu_worker.engine.completions import Ending, settled_text
from gpu_worker.engine.errors import require_fit
from gpu_worker.engine.prompts import PromptReader
from gpu_worker.engine.rows import LogprobRecord, RowSampling
from gpu_worker.engine.shaping import ScoreShaper, Shaping


class Intake:
    """Reads requests for one model."""

    def __init__(self, model: Any, prompts: PromptReader) -> None:
        self._prompts = prompts
        self._ends = _end_tokens(model)
        self._repetition_penalty = _repetition_penalty(model)

    def held(self, request_id: str, request: Request, *, context_tokens: int, generated: tuple[int, ...] = ()) -> Held:
        """The request as the book takes it; `generated` are its tokens from an earlier run.

        Raises:
            InvalidRequestError: it cannot be run as it stands.
        """
        params = request.params
        prompt_ids = self._prompts.token_ids(request)
        require_fit(len(prompt_ids), params.max_tokens, context_tokens)
        self._prompts.require_known("stop_token_ids", params.stop_token_ids)
        self._prompts.require_known("logit_bias", [token for token, _ in params.logit_bias])
        ending = Ending(params, self._ends, self._prompts.decode)
        return Held(
            request_id=request_id,
            request=request,
            prompt_ids=prompt_ids,
            sampling=self._sampling(params, prompt_ids, ending),
            before=generated,
            ending=ending,
            settled=settled_text(request, prompt_ids, ending, self._prompts.decode),
            progress=generated,
        )

    def _sampling(self, params: SamplingParams, prompt_ids: tuple[int, ...], ending: Ending) -> RowSampling:
        shaping = self._shaping(params, ending)
        return RowSampling(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=random.getrandbits(63) if params.seed is None else params.seed,
            prompt_tokens=len(prompt_ids),
            shaper=None if shaping.neutral else ScoreShaper(shaping, prompt_ids),
            record=None if params.logprobs is None else LogprobRecord(params.logprobs),
        )

    def _shaping(self, params: SamplingParams, ending: Ending) -> Shaping:
        wanted = params.repetition_penalty
        return Shaping(
            repetition_penalty=self._repetition_penalty if wanted is None else wanted,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=params.logit_bias,
            min_tokens=params.min_tokens,
            held_back=tuple(sorted(ending.tokens)),
        )


def _end_tokens(model: Any) -> tuple[int, ...]:
    """The ids that end a text, from the model's generation config or else its config; may be none."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = getattr(model.config.get_text_config(), "eos_token_id", None)
    if ends is None:
        return ()
    return (ends,) if isinstance(ends, int) else tuple(ends)


def _repetition_penalty(model: Any) -> float:
    """What the model's generation config asks for, as `generate` applies it to a request that says nothing; else 1."""
    return float(model.generation_config.repetition_penalty or 1.0)
