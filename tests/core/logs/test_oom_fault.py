"""CUDA faults that end every client of an MPS server are recognised."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.logs.oom import find_fault

QUIET = settings(max_examples=100, derandomize=True)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: misaligned address",
        "RuntimeError: CUDA error: an illegal instruction was encountered",
        "RuntimeError: CUDA error: the launch timed out and was terminated",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "node03:301:301 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
        "node03:301:301 [0] enqueue.cc:1085 NCCL WARN Cuda failure 719 'unspecified launch failure'",
        "cupy.cuda.runtime.CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access was encountered",
        "E cuda_driver.cc:1085] failed to synchronize: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
        "INTERNAL: CUDA error: Could not synchronize CUDA stream: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access",
        "numba.cuda.cudadrv.driver.CudaAPIError: [719] Call to cuCtxSynchronize results in CUDA_ERROR_LAUNCH_FAILED",
        "CUDA error at kernel.cu:97 code=716(cudaErrorMisalignedAddress) 'cudaDeviceSynchronize()'",
        "GPUassert: an illegal memory access was encountered kernel.cu 23",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 805: MPS client failed to connect to the MPS "
        "control daemon or the MPS server",
        "RuntimeError: CUDA error: the remote procedural call between the MPS server and the MPS client failed",
        "E ggml_cuda_init: failed to initialize CUDA: MPS server is not ready to accept new MPS client requests",
        "RuntimeError: CUDA error: the hardware resources required to create MPS client have been exhausted",
        "RuntimeError: CUDA error: the hardware resources required to support device connections have been exhausted",
        "RuntimeError: CUDA error: the MPS client has been terminated by the server",
        "CUDARuntimeError: cudaErrorMpsClientTerminated: the MPS client has been terminated by the server",
        "cuInit failed: CUDA_ERROR_MPS_SERVER_NOT_READY",
    ],
)
def test_the_line_is_returned(line: str) -> None:
    """The answer is the line of the error, shortened where it is long."""
    found = find_fault(f"step 12\n\x1b[31m{line}\x1b[0m\nCUDA kernel errors might be asynchronously reported\n")
    assert found is not None
    assert line.startswith(found.removesuffix("…")) or line.endswith(found)


def test_wrapping_and_ranks_change_nothing() -> None:
    """A message wrapped anywhere, with a rank prefix on each line, is found."""
    line = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert find_fault(f"[rank0]: {line[:40]}\n[rank0]: {line[40:]}\n") is not None


def test_the_last_one_counts() -> None:
    """Of several errors the last is returned."""
    assert find_fault("CUDA error: misaligned address\nCUDA error: unspecified launch failure\n") == (
        "CUDA error: unspecified launch failure"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        'if "device-side assert triggered" in str(error):',
        '  File "a.py", line 3, in step\n    raise RuntimeError("x: unspecified launch failure")\nValueError: no\n',
        "except cudaErrorIllegalAddress",
        "Using the MPS server of this GPU",
        "RuntimeError: MPS backend out of memory (MPS allocated: 6.8 GB)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    ],
)
def test_other_text_does_not_match(text: str) -> None:
    """Source code, mentions of MPS, Apple's MPS, and errors that affect only one process do not match."""
    assert find_fault(text) is None


@pytest.mark.parametrize(
    "text", ["C" * 2**20, " " * 2**20, "7" * 2**20, ":CUDA_ERROR_MPS" * 2**16, "encountered" * 2**16]
)
def test_long_texts_take_no_time(text: str) -> None:
    """A megabyte of any text is searched quickly."""
    begun = process_time()
    find_fault(text)
    assert process_time() - begun < 10.0  # what grows with the square takes hours


@QUIET
@given(st.text(max_size=200))
def test_any_text_is_accepted(text: str) -> None:
    """Any text gives a line or None."""
    find_fault(f"{text}\nCUDA error: misaligned address{text}")
