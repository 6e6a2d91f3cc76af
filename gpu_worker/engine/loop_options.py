"""How large a generation loop is made, and of which kind."""

import math
from typing import Any

import msgspec

from gpu_worker.engine.limits import QUIET_STEPS


class LoopOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the loop. None is for the library to infer from the GPU's free memory."""

    page_size: int = 256  # tokens of a page of the KV cache
    num_blocks: int | None = None  # pages, each for all layers
    max_batch_tokens: int | None = None  # prompt and new tokens of one step
    max_requests: int = 256  # of one step; more wait
    memory_share: float = 0.8  # of the free GPU memory, for the cache; the rest is for logits
    prefix_sharing: bool = True
    graphs: bool = True  # CUDA graphs, where the library would use them
    compiled: bool = False  # torch.compile, in loops that may have graphs
    prefer_flash: bool = True  # on a GPU, whatever attention the model was loaded with
    padded: bool = False  # a loop without paged cache (`padded.py`), for a model over several GPUs
    quiet_steps: int = QUIET_STEPS  # after a shortage of memory, until limits grow

    def resized(self, *, slots: int = 0, kv_tokens: int = 0) -> "LoopOptions":
        """These options with other sizes; 0 leaves one as it is."""
        return msgspec.structs.replace(
            self,
            max_requests=slots or self.max_requests,
            num_blocks=math.ceil(kv_tokens / self.page_size) if kv_tokens else self.num_blocks,
        )

    def with_cache(self, percent: int) -> "LoopOptions":
        """These options with a part of their KV cache."""
        blocks = self.num_blocks and max(1, self.num_blocks * percent // 100)
        return msgspec.structs.replace(self, num_blocks=blocks, memory_share=self.memory_share * percent / 100)


# Measured on two cores with SmolLM2-135M: greater steps gain nothing and delay every request in them.
_CPU_OPTIONS = LoopOptions(page_size=32, num_blocks=256, max_batch_tokens=256, max_requests=64)


def default_options(model: Any) -> LoopOptions:
    """The sizes for the device that a model is on."""
    return _CPU_OPTIONS if model.device.type == "cpu" else LoopOptions()
