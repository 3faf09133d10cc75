"""The last words of frameworks: what each prints when a GPU is full, or when it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.devices.simulator_presence import Shortage

_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
FAULT = f"RuntimeError: CUDA error: an illegal memory access was encountered\n{_ASYNCHRONOUS}"
_FRACTION = "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit"
_NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
    "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)


def oom_message(text: str, shortage: Shortage, ordinal: int) -> str:
    """What a framework prints as it dies; `ordinal` is the device's number within the process."""
    return _MESSAGES[text](shortage, ordinal)


def torch_size(size: int) -> str:
    """A size as PyTorch writes it."""
    if size <= 2**10:
        return f"{size} bytes"
    for unit, factor in (("KiB", 2**10), ("MiB", 2**20)):
        if size <= factor * 2**10:
            return f"{size / factor:.2f} {unit}"
    return f"{size / 2**30:.2f} GiB"


def _torch(shortage: Shortage, ordinal: int) -> str:
    return _torch_since_2_1("torch.OutOfMemoryError", "capacity", shortage, ordinal)


def _torch_2_4(shortage: Shortage, ordinal: int) -> str:
    return _torch_since_2_1("torch.cuda.OutOfMemoryError", "capacity", shortage, ordinal)


def _torch_2_1(shortage: Shortage, ordinal: int) -> str:
    return _torch_since_2_1("torch.cuda.OutOfMemoryError", "capacty", shortage, ordinal)


def _torch_fraction(shortage: Shortage, ordinal: int) -> str:
    return _torch_since_2_1("torch.OutOfMemoryError", "capacity", shortage, ordinal, f"{_FRACTION}. ")


def _torch_since_2_1(error: str, capacity: str, shortage: Shortage, ordinal: int, more: str = "") -> str:
    neighbours = "".join(f"Process {pid} has {torch_size(size)} memory in use. " for pid, size in shortage.others)
    mine = torch_size(shortage.mine)
    return (
        f"{error}: CUDA out of memory. Tried to allocate {torch_size(shortage.wanted)}. "
        f"GPU {ordinal} has a total {capacity} of {torch_size(shortage.total)} "
        f"of which {torch_size(shortage.free)} is free. {more}{neighbours}"
        f"Including non-PyTorch memory, this process has {mine} memory in use. "
        f"Of the allocated memory {mine} is allocated by PyTorch, "
        "and 0 bytes is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _torch_2_0(shortage: Shortage, ordinal: int) -> str:
    return _torch_until_2_0("torch.cuda.OutOfMemoryError", shortage, ordinal)


def _torch_1(shortage: Shortage, ordinal: int) -> str:
    return _torch_until_2_0("RuntimeError", shortage, ordinal)


def _torch_until_2_0(error: str, shortage: Shortage, ordinal: int) -> str:
    mine = torch_size(shortage.mine)
    return (
        f"{error}: CUDA out of memory. Tried to allocate {torch_size(shortage.wanted)} (GPU {ordinal}; "
        f"{torch_size(shortage.total)} total capacity; {mine} already allocated; {torch_size(shortage.free)} free; "
        f"{mine} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF"
    )


def _jax(shortage: Shortage, ordinal: int) -> str:
    error = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"
    return f"{error} while trying to allocate {shortage.wanted} bytes."


def _tensorflow(shortage: Shortage, ordinal: int) -> str:
    error = "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor"
    place = f"/job:localhost/replica:0/task:0/device:GPU:{ordinal} by allocator GPU_{ordinal}_bfc"
    return f"{error} with shape[{shortage.wanted // 4}] and type float on {place}"


def _cupy(shortage: Shortage, ordinal: int) -> str:
    sizes = f"allocating {shortage.wanted:,} bytes (allocated so far: {shortage.mine:,} bytes)."
    return f"cupy.cuda.memory.OutOfMemoryError: Out of memory {sizes}"


def _always(words: str) -> Callable[[Shortage, int], str]:
    return lambda shortage, ordinal: words


_MESSAGES: Mapping[str, Callable[[Shortage, int], str]] = {
    "torch": _torch,
    "torch-1": _torch_1,
    "torch-2.0": _torch_2_0,
    "torch-2.1": _torch_2_1,
    "torch-2.4": _torch_2_4,
    "torch-fraction": _torch_fraction,
    "jax": _jax,
    "tf": _tensorflow,
    "cupy": _cupy,
    "cublas": _always("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cudnn": _always("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "nccl": _always(_NCCL),
    "cuda": _always(f"RuntimeError: CUDA error: out of memory\n{_ASYNCHRONOUS}"),
}
