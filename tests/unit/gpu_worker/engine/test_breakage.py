import pytest

from gpu_worker.engine.breakage import Breakage, breakage_of, drop_frames


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


MEMORY = (
    OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"),
    MemoryError(),
    MemoryError("Memory footprint 12 is more than available memory 7"),
    ValueError("Invalid values: max_batch_tokens = 8192, num_sectors = -3"),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."),
    OSError(12, "Cannot allocate memory"),
)
DEVICE = (
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: misaligned address"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("HIP error: an illegal memory access was encountered"),
    RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error"),
)
OTHER = (
    RuntimeError("broken on purpose"),
    ValueError("shape mismatch"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    AssertionError(),
    RuntimeError("the special index overflows"),
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((error, Breakage.MEMORY) for error in MEMORY),
        *((error, Breakage.DEVICE) for error in DEVICE),
        *((error, Breakage.OTHER) for error in OTHER),
    ],
    ids=str,
)
def test_each_error_is_what_it_is(error, kind):
    assert breakage_of(error) is kind


def test_what_an_error_was_raised_from_counts():
    try:
        raise RuntimeError("compiled code failed") from RuntimeError("CUDA out of memory")
    except RuntimeError as error:
        assert breakage_of(error) is Breakage.MEMORY
        error.__cause__.__cause__ = RuntimeError("CUDA error: device-side assert triggered")
        assert breakage_of(error) is Breakage.DEVICE
        error.__cause__ = error  # a circle ends
        assert breakage_of(error) is Breakage.OTHER


def test_frames_go_with_those_of_what_came_before():
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raise RuntimeError("second")  # noqa: B904
    except RuntimeError as error:
        drop_frames(error)
        assert error.__traceback__ is None
        assert error.__context__.__traceback__ is None
