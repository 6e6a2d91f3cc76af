"""Moves a model's weights to the CPU's memory and back, each to the device that it came from.

Run on the CPU only so far: there, nothing moves.
"""

from typing import Any

import torch

from gpu_worker.engine.memory import MIB, available_bytes


class Weights:
    """The weights and buffers of a loaded model, wherever they are now."""

    def __init__(self, model: Any) -> None:
        self._tensors: list[Any] = [*model.parameters(), *model.buffers()]
        self._homes = [tensor.device for tensor in self._tensors]
        self.mib = round(sum(tensor.nbytes for tensor in self._tensors) / MIB, 1)

    @property
    def device(self) -> str:
        """Where they are: of a model over several GPUs, all of these with commas between."""
        return ",".join(dict.fromkeys(str(tensor.device) for tensor in self._tensors)) or "cpu"

    def offload(self) -> None:
        """Bring them to the CPU's memory, and give the GPU's back to the system."""
        self._move([torch.device("cpu")] * len(self._tensors))
        free_cache()

    def restore(self) -> None:
        """Bring them back. Where that fails, as when a GPU is full, they are all on the CPU again."""
        try:
            self._move(self._homes)
        except RuntimeError:  # torch's own OutOfMemoryError is one
            self.offload()
            raise

    def forget(self) -> None:
        """Hold nothing any more, so that the memory can be used again."""
        self._tensors.clear()

    def _move(self, devices: list[torch.device]) -> None:
        # The data alone: a parameter that several modules share stays one.
        for tensor, device in zip(self._tensors, devices, strict=True):
            if tensor.device != device:
                tensor.data = tensor.data.to(device)


def free_cache() -> None:
    """Give GPU memory that no tensor uses back to the system."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def device_memory(device: str) -> dict[str, float]:
    """Allocated, reserved and free MiB of a GPU, or of several together; nothing for a CPU."""
    if not device.startswith("cuda"):
        return {}
    gpus = device.split(",")
    return {
        "allocated_mib": round(sum(torch.cuda.memory_allocated(gpu) for gpu in gpus) / MIB, 1),
        "reserved_mib": round(sum(torch.cuda.memory_reserved(gpu) for gpu in gpus) / MIB, 1),
        "free_mib": round(room_for_cache(device) / MIB, 1),
    }


def room_for_cache(device: str) -> int:
    """Bytes that a KV cache may take besides what is in use, on all GPUs that are named."""
    if device.startswith("cuda"):
        return sum(int(torch.cuda.mem_get_info(gpu)[0]) for gpu in device.split(","))
    return available_bytes()
