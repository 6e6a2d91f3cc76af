"""What an exception says about the process: memory was short, the device is lost, or something else went wrong.

CUDA's libraries report both as plain RuntimeErrors, so their texts decide. A shortage passes with smaller steps. After
a sticky CUDA error every further call fails too, until the process ends. Anything else may be one request's fault.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto


class Breakage(Enum):
    """Which of the three it is."""

    MEMORY = auto()
    DEVICE = auto()
    OTHER = auto()


_MEMORY = re.compile(
    r"out of memory|not enough memory|can(?:no|')t allocate memory|failed to allocate|insufficient memory"
    r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|cudaErrorMemoryAllocation"
    # A library's handle is the first thing that finds no room.
    r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_NOT_INITIALIZED"
    # transformers' sizing of the KV cache, where the free memory holds no page of it (or not the pages asked for)
    r"|Invalid values: max_batch_tokens|Memory footprint \d+ is more than available memory",
    re.IGNORECASE,
)
_CALL = re.compile(r"CU[A-Z]+_STATUS_(?:INVALID_VALUE|NOT_SUPPORTED|ARCH_MISMATCH|BAD_PARAM)")
_DEVICE = re.compile(
    r"(?:CUDA|HIP)(?: driver)? error|device-side assert|illegal memory access|misaligned address|illegal instruction"
    r"|unspecified launch failure|uncorrectable ECC|\bECC error|GPU has fallen off the bus|\bXid\b"
    r"|(?:CUBLAS|CUDNN)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)|NCCL error",
    re.IGNORECASE,
)


def breakage_of(error: BaseException) -> Breakage:
    """The kind of an error; what it was raised from counts too, as compiled code wraps what broke it."""
    kinds = {_kind(each) for each in chain(error)}
    return next(kind for kind in (Breakage.DEVICE, Breakage.MEMORY, Breakage.OTHER) if kind in kinds)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it was raised from."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def drop_frames(error: BaseException) -> None:
    """Take the frames from an error: they hold the tensors of the step that failed."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            links += [link.__cause__, link.__context__]


def _kind(error: BaseException) -> Breakage:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Breakage.MEMORY
    text = str(error)
    if _MEMORY.search(text):
        return Breakage.MEMORY
    if _CALL.search(text):
        return Breakage.OTHER  # one call was wrong; the device is as it was
    return Breakage.DEVICE if _DEVICE.search(text) else Breakage.OTHER
