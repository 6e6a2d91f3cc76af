"""One life of transformers' continuous-batching loop: all that Stoker knows of the library's inside is here.

The loop runs in a thread of its own. An exception in it fails every request it holds and ends it for good; a new
one is then made by who owns the requests (`TransformersEngine`).
"""

import logging
import queue
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.model_runner import (
    infer_max_single_request_tokens,
)
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from gpu_worker.engine.breakage import drop_frames
from gpu_worker.engine.cache_meter import CacheMeter
from gpu_worker.engine.loop import Run
from gpu_worker.engine.loop_options import LoopOptions
from gpu_worker.engine.one_pass import one_pass_at_a_time
from gpu_worker.engine.sampling import PerRequestSampling

# Below errors it tells of every "useless token" and of each cache decision.
logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)

_NO_END = -1  # to the library, a token that never comes


class GenerationLoop:
    """A started loop over a resident model. Outputs go to `inbox` as the library's `GenerationOutput`."""

    def __init__(
        self,
        model: Any,
        options: LoopOptions,
        sampling: PerRequestSampling,
        inbox: "queue.Queue[Any]",
        meter: CacheMeter,
    ) -> None:
        one_pass_at_a_time(model)
        manager = ContinuousBatchingManager(
            model=model,
            generation_config=_generation_config(),
            continuous_batching_config=loop_config(options, on_cpu=model.device.type == "cpu"),
        )
        manager.output_router.output_queue = inbox
        manager.logit_processor = sampling
        config = manager.continuous_batching_config
        compiled = config.varlen_compile_config or config.decode_compile_config
        sampling.eager = not compiled and not any(config.cuda_graph_booleans)
        with torch.inference_mode():
            manager.warmup()  # makes the cache; captures CUDA graphs where there are any
            self._processor: Any = manager.batch_processor
            self.slots: int = config.max_requests_per_batch or 1
            self.step_tokens: int = config.max_batch_tokens or 1
            self.kv_tokens: int = infer_max_single_request_tokens(self._processor.cache)
            self.kv_bytes: int = self._processor.cache.cache_tensor.nbytes
            self.token_bytes: float = self.kv_bytes / self.kv_tokens
            _mark_cancelled(self._processor.scheduler)
            meter.watch(self._processor)
            manager.start()
        self.error: Exception | None = None  # what ended the loop; known once it is stopped
        self._manager: Any = manager
        self._meter = meter

    def limit(self, *, slots: int, step_tokens: int) -> None:
        """Hold no more than this in a step from the next one on; what the loop was made for is the most."""
        if self._processor is not None:
            self._processor.max_batch_tokens = min(step_tokens, self.step_tokens)
            # The library relies on there being no more requests than tokens.
            self._processor.scheduler.max_requests_per_batch = min(slots, step_tokens, self.slots)

    @property
    def alive(self) -> bool:
        """Whether the loop still takes requests; False from the first moment of its end."""
        status = self._manager and self._manager.background_thread_status
        return status is not None and status.can_accept_new_requests() is None

    @property
    def active(self) -> int:
        """Requests with a place in the KV cache."""
        return len(self._processor.scheduler.active_requests) if self._processor else 0

    def add(self, run: Run) -> None:
        """Queue a request."""
        self._manager.add_request(
            list(run.token_ids),
            request_id=run.key,
            max_new_tokens=run.max_new_tokens,
            eos_token_id=list(run.ends) or _NO_END,
            streaming=run.streaming,
            sampling=run.sampling,
        )

    def cancel(self, key: str) -> None:
        """Drop a request before the next step; an output that is already on its way may still come."""
        self._manager.cancel_request(key)

    def tokens(self, key: str) -> tuple[int, ...]:
        """What the loop has generated for a request so far; empty for one that it does not hold."""
        if self._processor is None:
            return ()
        scheduler = self._processor.scheduler
        state = scheduler.active_requests.get(key) or scheduler.waiting_requests.get(key)
        return _generated(state) if state is not None else ()

    def has_begun(self, key: str) -> bool:
        """Whether a request has a place in the KV cache, or has had one."""
        if self._processor is None:
            return False
        return key in self._processor.scheduler.active_requests or bool(self.tokens(key))

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the thread after the step it is in, and free the KV cache. Safe to call twice."""
        manager, self._manager, self._processor = self._manager, None, None
        if manager is None:
            return
        self._meter.forget()
        status = manager.background_thread_status
        fatal: Exception | None = status.fatal_error
        if fatal is not None:
            drop_frames(fatal)  # before the memory is freed that they hold
        try:
            manager.stop(block=True, timeout=timeout_s, hard_stop=True)
        except RuntimeError as error:  # on a lost device nothing can be freed either
            fatal = fatal or error
        self.kv_bytes = 0
        self.error = fatal or status.fatal_error


def _generated(state: RequestState) -> tuple[int, ...]:
    # A request that lost its place in the cache carries its tokens behind its prompt.
    prompt = state._true_initial_tokens or len(state.initial_tokens)  # pyright: ignore[reportPrivateUsage]
    return (*state.initial_tokens[prompt:], *state.generated_tokens)


def _generation_config() -> GenerationConfig:
    """Greedy, as `PerRequestSampling` picks the tokens; end tokens come with each request."""
    return GenerationConfig(do_sample=False, eos_token_id=_NO_END)


def loop_config(options: LoopOptions, *, on_cpu: bool) -> ContinuousBatchingConfig:
    """The options as transformers takes them."""
    return ContinuousBatchingConfig(
        page_size=options.page_size,
        num_blocks=options.num_blocks,
        max_batch_tokens=options.max_batch_tokens,
        max_requests_per_batch=options.max_requests,
        max_memory_percent=options.memory_share,
        use_cuda_graph=None if options.graphs else False,
        allow_block_sharing=options.prefix_sharing,
        auto_switch_to_flash=options.prefer_flash and not on_cpu,
        default_compile_level=int(options.compiled and options.graphs),
    )


def _mark_cancelled(scheduler: Any) -> None:
    """Keep a cancelled request of a batch in flight from ending the loop.

    With asynchronous batching (GPU) a batch is updated after its requests may have been cancelled and their blocks
    freed; transformers 5.24 then looks the blocks up and fails. It skips requests that are marked finished.
    """
    clear = scheduler.clear_cancelled_requests

    def clear_and_mark() -> list[RequestState]:
        states = clear()
        for state in states:
            state.status = RequestStatus.FINISHED
        return states

    scheduler.clear_cancelled_requests = clear_and_mark
