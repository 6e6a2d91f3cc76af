"""Which device a worker gets, and under which name: decided by the supervisor, before anything imports torch."""

import re
import socket
from collections.abc import Iterator

import msgspec

from broker.errors import ConfigurationError

MAX_CPU_WORKERS = 1024
NAME = re.compile(r"[A-Za-z0-9_.-]+(@[A-Za-z0-9_.-]+)?")


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """A device and the worker name that goes with it; `gpus` is empty for the CPU."""

    name: str
    gpus: tuple[int, ...] = ()

    @property
    def device(self) -> str:
        """The device as settings and people name it."""
        return f"cuda:{','.join(map(str, self.gpus))}" if self.gpus else "cpu"

    def environment(self) -> dict[str, str]:
        """Pins the process to its device. Ordering by bus id makes the indices those of NVML and nvidia-smi."""
        visible = ",".join(map(str, self.gpus))
        return {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def usable_gpus(gpu_count: int, visible: str | None) -> tuple[int, ...]:
    """The GPUs that a worker may take: all of the host's, or those that CUDA_VISIBLE_DEVICES already allows.

    Raises:
        ConfigurationError: the variable names GPUs by UUID, which the supervisor cannot pin by index.
    """
    if visible is None:
        return tuple(range(gpu_count))
    parts = [part.strip() for part in visible.split(",") if part.strip()]
    if "-1" in parts:  # CUDA reads no further; people hide all GPUs so
        parts = parts[: parts.index("-1")]
    if not all(part.isdigit() for part in parts):
        raise ConfigurationError(f"CUDA_VISIBLE_DEVICES={visible!r} must be a list of indices, such as 0,1")
    return tuple(int(part) for part in parts if int(part) < gpu_count)


def candidates(device: str, name: str, gpus: tuple[int, ...]) -> Iterator[Placement]:
    """Placements to try, best first; the ledger says which names are free. `gpus` are those that may be taken.

    Raises:
        ConfigurationError: the device or name cannot be read, or the host has no such GPU.
    """
    if name and not NAME.fullmatch(name):
        raise ConfigurationError(f"worker_name={name!r} must be made of letters, digits, '_', '.', '-'")
    host = socket.gethostname()
    full_name = name if "@" in name else f"{name}@{host}" if name else ""
    if device == "cpu" or (device == "auto" and not gpus):
        names = [full_name] if full_name else (f"cpu{i}@{host}" for i in range(MAX_CPU_WORKERS))
        yield from (Placement(name=item) for item in names)
        return
    if full_name and device == "auto" and len(gpus) > 1:
        # The name is what claims a device; one that says nothing of the device could be given twice.
        there = ", ".join(map(str, gpus))
        raise ConfigurationError(f"worker_name={name!r}: give --device too, as there are several GPUs ({there})")
    groups = [(index,) for index in gpus] if device == "auto" else [_parse(device, gpus)]
    for group in groups:
        yield Placement(name=full_name or f"gpu{'-'.join(map(str, group))}@{host}", gpus=group)


def _parse(device: str, usable: tuple[int, ...]) -> tuple[int, ...]:
    match = re.fullmatch(r"cuda:(\d+(?:,\d+)*)", device)
    if match is None:
        raise ConfigurationError(f"device={device!r} must be auto, cpu, cuda:N, or cuda:N,M")
    gpus = tuple(int(index) for index in match[1].split(","))
    if not set(gpus) <= set(usable):
        there = ", ".join(map(str, usable)) or "none"
        raise ConfigurationError(f"device={device!r}: the GPUs that may be used here are: {there}")
    return gpus
