"""How many tokens the cache of a model may hold, each layer's on its own device."""

from typing import Any

import torch

from gpu_worker.engine.loop_options import LoopOptions
from gpu_worker.engine.offload import room_for_cache
from gpu_worker.engine.padded_batch import PaddedBatch, PaddedRow


def bytes_of_a_token(model: Any) -> dict[str, int]:
    """What the cache of one token takes on each device."""
    row = PaddedRow(
        request_id="",
        initial_tokens=(0,),
        max_new_tokens=1,
        ends=(),
        streaming=False,
        logit_processor_kwargs={},
    )
    batch, sizes = PaddedBatch(model), dict[str, int]()
    with torch.inference_mode():
        batch.read([row], 1, _uncounted)
    for layer in batch.layers:
        if layer.is_initialized:
            device = str(layer.keys.device)
            sizes[device] = sizes.get(device, 0) + layer.keys.nbytes + layer.values.nbytes
    return sizes


def room_for_tokens(options: LoopOptions, bytes_by_device: dict[str, int]) -> int:
    """What the options ask for, or as much as the fullest device has room for.

    Raises:
        RuntimeError: there is less than they ask for; its text is that of a shortage of memory.
    """
    room = min(
        int(room_for_cache(device) * options.memory_share / token_bytes)
        for device, token_bytes in bytes_by_device.items()
    )
    wanted = options.num_blocks and options.num_blocks * options.page_size
    if (wanted or 1) > room:
        raise RuntimeError(f"not enough memory for a KV cache of {wanted or 1} tokens: there is room for {room}")
    return wanted or room


def _uncounted(_tokens: int, _last: bool) -> None:
    """It is no step of a request."""
