"""What a model's weights and its KV cache occupy, and whether another cache would fit."""

from broker.commands import Memory
from gpu_worker.engine.errors import NoRoomError
from gpu_worker.engine.loop import Loop
from gpu_worker.engine.memory import MIB, rss_mib
from gpu_worker.engine.offload import Weights, device_memory, room_for_cache


def occupied(weights: Weights, loop: Loop) -> Memory:
    """What weights and cache occupy, and the device's numbers."""
    device = weights.device
    return Memory(
        device=device,
        rss_mib=rss_mib(),
        weights_mib=weights.mib,
        kv_cache_mib=round(loop.kv_bytes / MIB, 1),
        **device_memory(device),
    )


def require_room(kv_tokens: int, weights: Weights, loop: Loop) -> None:
    """Refuse a cache of so many tokens, in the place of the loop's, for which the device has no memory.

    Raises:
        NoRoomError: says for how many there is room.
    """
    wanted_bytes = int(loop.token_bytes * kv_tokens)
    room_bytes = loop.kv_bytes + room_for_cache(weights.device)
    if wanted_bytes > room_bytes:
        most = int(room_bytes / loop.token_bytes)
        raise NoRoomError(
            f"kv_tokens={kv_tokens} needs {wanted_bytes / MIB:,.0f} MiB; the memory has room for {most} tokens"
        )
