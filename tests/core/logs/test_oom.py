"""Out-of-memory errors are recognised in the messages of frameworks, and nothing else is."""

from __future__ import annotations

import textwrap
from itertools import product
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.logs.oom import OutOfMemory, find_oom, floor_after, is_own_fault

QUIET = settings(max_examples=200, derandomize=True)
KIB, MIB, GIB = 2**10, 2**20, 2**30


def gib(number: float) -> int:
    return int(number * GIB)


def mib(number: float) -> int:
    return int(number * MIB)


def found(text: str) -> OutOfMemory:
    oom = find_oom(text)
    assert oom is not None
    return oom


ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
WITH_CO_TENANT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB "
    "of "
    "which 1.58 GiB is free. Process 2493055 has 12.02 GiB memory in use. Including non-PyTorch memory, this process "
    "has "
    "966.00 MiB memory in use. Of the allocated memory 734.07 MiB is allocated by PyTorch, and 33.93 MiB is reserved "
    "by "
    f"PyTorch but unallocated. {ADVICE}"
)

# (text, wanted, own, total, free)
TORCH = {
    "1.1, with what is cached beside what is allocated": (
        "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 11.17 GiB total capacity; 10.90 GiB "
        "already allocated; 576.00 KiB free; 30.96 MiB cached)",
        MIB,
        gib(10.90) + mib(30.96),
        gib(11.17),
        576 * KIB,
    ),
    "1.5, with what is reserved": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB "
        "already "
        "allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)",
        gib(2.26),
        gib(1.24),
        gib(6),
        gib(3.03),
    ),
    "1.13, with a name of its own and nothing free": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 192.00 MiB (GPU 3; 4.00 GiB total "
        "capacity; "
        "3.08 GiB already allocated; 0 bytes free; 3.47 GiB reserved in total by PyTorch) If reserved memory is >> "
        "allocated memory try setting max_split_size_mb to avoid fragmentation.",
        192 * MIB,
        gib(3.47),
        gib(4),
        0,
    ),
    "2.1, with its spelling of capacity": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacty of "
        "4.00 "
        "GiB of which 41.56 MiB is free. Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the "
        "allocated memory 2.58 GiB is allocated by PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated.",
        32 * MIB,
        gib(3.44),
        gib(4),
        mib(41.56),
    ),
    "2.3": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 226.00 MiB. GPU 1 has a total capacity of "
        "15.70 GiB of which 210.38 MiB is free. Including non-PyTorch memory, this process has 15.48 GiB memory in "
        "use.",
        226 * MIB,
        gib(15.48),
        gib(15.70),
        mib(210.38),
    ),
    "2.5, with a co-tenant": (WITH_CO_TENANT, gib(1.95), 966 * MIB, gib(14.57), gib(1.58)),
    "ROCm, which tells of no other processes": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.88 GiB. GPU 0 has a total capacity of 23.98 "
        "GiB of "
        "which 1.70 GiB is free. Of the allocated memory 21.65 GiB is allocated by PyTorch, and 279.78 MiB is "
        "reserved by "
        f"PyTorch but unallocated. {ADVICE}",
        gib(1.88),
        gib(21.65) + mib(279.78),
        gib(23.98),
        gib(1.70),
    ),
    "the allocator of CUDA instead of its own": (
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 6.89 GiB\n"
        "Requested               : 320.00 MiB\n"
        "Device limit            : 23.69 GiB\n"
        "Free (according to CUDA): 2.94 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB",
        320 * MIB,
        gib(6.89),
        gib(23.69),
        mib(2.94),
    ),
    "the same without figures": ("torch.OutOfMemoryError: Allocation on device \n", None, None, None, None),
    "cut off in the middle": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allo", None, None, None, None),
}


@pytest.mark.parametrize("version", TORCH)
def test_torch_prints_all_numbers(version: str) -> None:
    """Every version of PyTorch prints the wanted, held and total memory."""
    text, wanted, own, total, free = TORCH[version]
    oom = found(text)
    assert oom.framework == "torch"
    assert (oom.wanted, oom.own, oom.total, oom.free) == (wanted, own, total, free)
    assert not oom.capped


def test_torch_lists_co_tenants() -> None:
    """From 2.1 on, PyTorch lists the other processes on the GPU with their memory."""
    assert found(WITH_CO_TENANT).co_tenants == ((2493055, gib(12.02)),)
    many = "".join(f"Process {pid} has 300.00 MiB memory in use. " for pid in range(1000, 1048))
    assert len(found(WITH_CO_TENANT.replace("Process 2493055 has 12.02 GiB memory in use. ", many)).co_tenants) == 48


def test_in_a_container_torch_is_found_among_the_processes() -> None:
    """In a container torch does not know its own process id, and lists itself as a co-tenant."""
    oom = found(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of "
        "24.75 "
        "GiB of which 235.06 MiB is free. Process 777 has 10.00 GiB memory in use. Process 20398 has 14.52 GiB "
        "memory in "
        "use. Of the allocated memory 14.06 GiB is allocated by PyTorch, and 330.42 MiB is reserved by PyTorch but "
        "unallocated."
    )
    assert oom.own == gib(14.52)
    assert oom.co_tenants == ((777, gib(10)),)


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of "
        "23.65 GiB "
        "of which 20.10 GiB is free. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Including non-PyTorch memory, this process has 3.54 GiB memory in use.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of "
        "23.65 GiB "
        "of which 20.10 GiB is free. Including non-PyTorch memory, this process has 3.54 GiB memory in use. 3.60 GiB "
        "allowed; Of the allocated memory 3.10 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but "
        "unallocated.",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 2,000,000,000 bytes (allocated so far: "
        "1,024,000,000 "
        "bytes, limit set to: 2,147,483,648 bytes).",
    ],
)
def test_a_limit_of_its_own_is_not_the_fault_of_co_tenants(text: str) -> None:
    """A process that exceeded its own limit is recognised."""
    oom = found(text)
    assert oom.capped
    assert is_own_fault(oom, reserved=100 * GIB)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
            "4770354232 "
            "bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
            "             parameter allocation:  372.76MiB\n",
            4770354232,
        ),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.25TiB.", 5 * 2**38),
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB "
            "(3206250496B) "
            "on device ordinal 0",
            gib(2.99),
        ),
        (
            "RuntimeError: Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 0",
            32 * MIB,
        ),
        (
            "2019-06-13 01:17:08.886805: E external/org_tensorflow/tensorflow/compiler/xla/python/local_client.cc:672] "
            "Execution of replica 0 failed: Resource exhausted: Out \nof memory while trying to allocate 5520758552 "
            "bytes.",
            5520758552,
        ),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.", 20029400304),
    ],
)
def test_jax(text: str, wanted: int) -> None:
    """XLA prints the wanted memory in bytes or with a unit."""
    oom = found(text)
    assert (oom.framework, oom.wanted, oom.own) == ("jax", wanted, None)


STATS = (
    "I tensorflow/core/common_runtime/bfc_allocator.cc:702] Stats: \n"
    "Limit:                 12049707828\n"
    "InUse:                 11984328960\n"
    "MaxInUse:              12038083584\n"
    "NumAllocs:               248036306\n"
)


@pytest.mark.parametrize(
    ("text", "wanted", "own"),
    [
        (
            "ResourceExhaustedError: OOM when allocating tensor with shape[128,128,109,109] and type float on "
            "/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc\n\t [[Node: replica_1/xception]]",
            128 * 128 * 109 * 109 * 4,
            None,
        ),
        (
            f"{STATS}\nResourceExhaustedError (see above for traceback): OOM when allocating tensor with "
            f"shape[256,832,7,7]\n",
            None,
            11984328960,
        ),
        (
            "  (1) RESOURCE_EXHAUSTED:  OOM when allocating tensor with shape[16,112] and type half on "
            "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
            16 * 112 * 2,
            None,
        ),
        ("ResourceExhaustedError: failed to allocate memory [Op:AddV2]", None, None),
        (
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node __wrapped__AddV2_device_/"
            "job:localhost/replica:0/task:0/device:GPU:0}} failed to allocate memory [Op:AddV2] name: ",
            None,
            None,
        ),
        ("  (1) Resource exhausted: failed to allocate memory\n         [[{{node mul_89}}]]", None, None),
        (
            "InternalError: Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to "
            "/job:localhost/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is not initialized.",
            None,
            None,
        ),
    ],
)
def test_tensorflow(text: str, wanted: int | None, own: int | None) -> None:
    """Shape and type of the tensor give the wanted memory, the allocator's lines before it the held memory."""
    oom = found(text)
    assert (oom.framework, oom.wanted, oom.own) == ("tensorflow", wanted, own)


@pytest.mark.parametrize(
    ("text", "wanted", "own"),
    [
        (
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 25,600,000 bytes (allocated so far: "
            "3,635,267,072 "
            "bytes).",
            25_600_000,
            3_635_267_072,
        ),
        (
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 512 bytes (allocated so far: 6,789 bytes, "
            "limit "
            "set to: 8,589,934,592 bytes).",
            512,
            6789,
        ),
        (
            "cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 200000000000 bytes (total 200000004096 "
            "bytes)",
            200000000000,
            4096,
        ),
        ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", None, None),
    ],
)
def test_cupy(text: str, wanted: int | None, own: int | None) -> None:
    """CuPy prints both numbers; its older total includes the failed allocation."""
    oom = found(text)
    assert (oom.framework, oom.wanted, oom.own) == ("cupy", wanted, own)
    assert not oom.capped


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        ("cublas", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        (
            "cublas",
            "E tensorflow/stream_executor/cuda/cuda_blas.cc:238] failed to create cublas handle: "
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        ("cublas", "cupy_backends.cuda.libs.cublas.CUBLASError: CUBLAS_STATUS_ALLOC_FAILED"),
        ("cublas", "E0000 00:00:17.1 cuda_blas.cc:199] failed to create cublas handle: the resource allocation failed"),
        ("cudnn", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("cudnn", "E cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"),
        ("cudnn", "init.lua:118: Error in CuDNN: CUDNN_STATUS_ALLOC_FAILED (cudnnFindConvolutionForwardAlgorithm)"),
        ("cudnn", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("nccl", "node03:3018451:3018451 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'"),
        ("nccl", "node03:301:301 [0] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'"),
        (
            "nccl",
            "[rank7]: torch.distributed.DistBackendError: NCCL error in: "
            "../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
            "[rank7]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "[rank7]: Last error:\n"
            "[rank7]: Cuda failure 2 'out of memory'\n",
        ),
        ("cuda", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        (
            "cuda",
            "torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://",
        ),
        ("cuda", "RuntimeError('CUDA error: out of memory\\nCUDA kernel errors might be')"),
        ("cuda", '{"level": "error", "error": "CUDA error: out of memory"}'),
        ("cuda", "RuntimeError: cuda runtime error (2) : out of memory at /tmp/torch/lib/THC/generic/THCStorage.cu:66"),
        ("cuda", "THCudaCheck FAIL file=/tmp/torch/lib/THC/generic/THCStorage.cu line=66 error=2 : out of memory"),
        ("cuda", "CUDA error 2 at ggml-cuda.cu:7233: out of memory"),
        (
            "cuda",
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: "
            "out of memory",
        ),
        ("cuda", "RuntimeError: CUDA failed with error out of memory"),
        ("cuda", "onnxruntime: CUDA failure 2: out of memory ; GPU=0 ; hostname=box"),
        ("cuda", "RuntimeError: Triton Error [CUDA]: out of memory"),
        ("cuda", "GPUassert: out of memory kernel.cu 23"),
        ("cuda", "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory"),
        ("cuda", "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
        (
            "cuda",
            "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: rmm/cuda_memory_resource.hpp:60: "
            "cudaErrorMemoryAllocation out of memory",
        ),
        ("cuda", 'CUDA error at vectorAdd.cu:97 code=2(cudaErrorMemoryAllocation) "cudaMalloc((void **)&d_A, size)"'),
        ("cuda", "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED"),
    ],
)
def test_libraries_of_cuda(framework: str, text: str) -> None:
    """CUDA's libraries print no numbers, and each has its own message."""
    oom = found(f"step 12\n{text}\nbye\n")
    assert (oom.framework, oom.own) == (framework, None)


@pytest.mark.parametrize(
    ("framework", "text", "wanted"),
    [
        (
            "vllm",
            "(EngineCore_DP0 pid=253) ERROR 10-25 13:08:43 [core.py:708] ValueError: Free memory on device cuda:0 "
            "(12.18/23.56 GiB) on startup is less than desired GPU memory utilization (0.92, 21.67 GiB). Decrease GPU "
            "memory utilization or reduce GPU memory used by other processes.\n"
            "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
            gib(21.67),
        ),
        (
            "vllm",
            "ValueError: Free memory on device (5.29/23.65 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 21.28 GiB).",
            gib(21.28),
        ),
        (
            "vllm",
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
            None,
        ),
        (
            "vllm",
            "ValueError: To serve at least one request with the model's max seq len (131072), (5.07 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (4.34 GiB).",
            None,
        ),
        ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", None),
        (
            "bitsandbytes",
            "Error out of memory at line 380 in file /home/ann/bitsandbytes/csrc/pythonInterface.c",
            None,
        ),
        ("bitsandbytes", "Error out of memory at line 88 in file /src/csrc/ops.cu", None),
        (
            "xgboost",
            "xgboost.core.XGBoostError: [13:55:26] /workspace/src/common/device_helpers.cuh:414: Memory allocation "
            "error on worker 3: Caching allocator\n- Free memory: 11310923776\n- Requested memory: 47996\n",
            None,
        ),
        (
            "rmm",
            "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/env/include/rmm/mr/device/"
            "pool_memory_resource.hpp:196: Maximum pool size exceeded",
            None,
        ),
        ("thrust", "RuntimeError: parallel_for failed: out of memory", None),
        (
            "onnxruntime",
            "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION "
            ": Non-zero status code returned while running Conv node. Name:'Conv_8' Status Message: /onnxruntime_src/"
            "onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, "
            "bool, onnxruntime::Stream*, bool, onnxruntime::WaitNotificationFn) Failed to allocate memory for "
            "requested buffer of size 2830172160",
            None,
        ),
        (
            "onnxruntime",
            "Status Message: bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, "
            "onnxruntime::Stream*, bool, onnxruntime::WaitNotificationFn) Available memory of 0 is smaller than "
            "requested bytes of 135383040",
            None,
        ),
        (
            "tensorrt",
            "[E] 1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)\n"
            "[W] Requested amount of GPU memory (1180463648 bytes) could not be allocated.\n"
            "[E] 2: [safeDeserialize.cpp::load::269] Error Code 2: OutOfMemory (no further information)\n"
            "AttributeError: 'NoneType' object has no attribute 'create_execution_context'",
            None,
        ),
        (
            "tensorrt",
            "../rtSafe/safeRuntime.cpp (25) - Cuda Error in nvinfer1::internal::DefaultAllocator::allocate: 2 "
            "(out of memory)",
            None,
        ),
        (
            "paddle",
            "ResourceExhaustedError: \n\nOut of memory error on GPU 1. Cannot allocate 15.503906GB memory on GPU 1, "
            "28.770508GB memory has been allocated and available memory is only 10.815613GB.",
            gib(15.503906),
        ),
        ("lightgbm", "lightgbm.basic.LightGBMError: [CUDA] out of memory /src/io/cuda/cuda_column_data.cpp 67", None),
        ("lightgbm", "[LightGBM] [Fatal] [CUDA] out of memory /src/io/cuda/cuda_column_data.cpp 67", None),
        (
            "julia",
            "ERROR: LoadError: Out of GPU memory trying to allocate 11.921 GiB\n"
            "Effective GPU memory usage: 99.85% (15.758 GiB/15.782 GiB)\n",
            gib(11.921),
        ),
    ],
)
def test_programs_on_top_of_cuda(framework: str, text: str, wanted: int | None) -> None:
    """Inference servers, gradient boosting and other languages have messages of their own."""
    oom = found(f"step 12\n{text}\nbye\n")
    assert (oom.framework, oom.wanted, oom.own) == (framework, wanted, None)


def test_vllm_that_wants_most_of_the_gpu_cannot_share() -> None:
    """vLLM reserves a share of the whole GPU; the total is that of the GPU."""
    oom = found(
        "ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 21.67 GiB)."
    )
    assert oom.total == gib(23.56)
    assert is_own_fault(oom, reserved=6 * GIB, seen_peak=GIB)
    assert not is_own_fault(oom, reserved=23 * GIB, seen_peak=GIB)


TRAINING = "\n".join(f"| INFO | train_inner | epoch 001: {100 * n} / 5000 loss=5.{n}, wps=2000" for n in range(1, 300))
LOST_FILE = "Traceback (most recent call last):\n  File \"t.py\", line 3\nFileNotFoundError: 'valid.bin'\n"
RECOVERED = (
    "| WARNING: OOM in all workers, skipping update: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total "
    "capacity of 14.57 GiB\n",
    "attempting to recover from OOM in forward/backward pass\nRuntimeError: CUDA error: out of memory\n",
    "2026-11-17 10:00:00.1: E tensorflow/stream_executor/cuda/cuda_driver.cc:828] failed to allocate 9.90G "
    "(10630043136 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
)


@pytest.mark.parametrize("warning", RECOVERED)
@pytest.mark.parametrize(
    "after",
    [
        TRAINING,
        "{'loss': 1.25, 'epoch': 0.1}\n{'loss': 1.21, 'epoch': 0.2}",
        "Epoch 1/3\nEpoch 2/3",
        " 45%|####      | 45/100 [00:10<00:12]\r 46%|####      | 46/100 [00:10<00:12]",
        "[I 2026-11-17] Trial 4 finished with value: 0.31\n[I 2026-11-17] Trial 5 finished with value: 0.29",
        "step 310 | loss 2.1\nstep 320 | loss 2.0",
    ],
)
def test_an_error_that_the_program_survived_does_not_count(warning: str, after: str) -> None:
    """A program that continued with its work failed of something else."""
    assert find_oom(f"epoch 001: 10 / 5000\n{warning}{after}\n{LOST_FILE}") is None


@pytest.mark.parametrize(
    "after",
    [
        LOST_FILE,
        " 45%|####      | 45/100 [00:10<00:12]\n 45%|####      | 45/100 [00:11<00:13]\n",
        "wandb: Run history:\nwandb: epoch 1\nwandb: train/loss 0.3\nwandb: step 400\n",
        "[rank3]: RuntimeError: NCCL communicator was aborted on rank 3\nW1117 10:00 Sending process 12 SIGTERM\n",
        "step 300 loss 2.0\n",
        "the last good state:\nepoch: 2\nstep: 412\nbatch: 32\nloss: 1.9\n",
        "Traceback (most recent call last):\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "=====\ntrain.py FAILED\nRoot Cause (first observed failure):\n[0]:\n  rank : 1 (local_rank: 1)\n",
    ],
)
def test_the_end_of_a_program_is_no_progress(after: str) -> None:
    """Bars that are drawn again, summaries of trackers, and errors of other ranks may follow the fatal message."""
    before = "epoch 1\nstep 300 loss 2.0\n 45%|####      | 45/100 [00:10<00:12]\n"
    assert found(f"{before}{WITH_CO_TENANT}\n{after}").own == 966 * MIB


def test_numbers_of_the_libraries() -> None:
    """NCCL and TensorFlow's driver wrapper print the wanted memory."""
    assert found("Last error:\nFailed to CUDA calloc async 10485760 bytes").wanted == 10 * MIB
    refused = (
        "E tensorflow/stream_executor/cuda/cuda_driver.cc:828] failed to allocate 32.00M (33554432 bytes) from device: "
    )
    assert found(f"{refused}CUDA_ERROR_OUT_OF_MEMORY: out of memory").wanted == 32 * MIB
    assert found(f"{refused}RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY").wanted == 32 * MIB


EVERYWHERE = [
    WITH_CO_TENANT,
    *(text for text, *_ in list(TORCH.values())[:7]),
    "RuntimeError: CUDA error: out of memory",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 "
    "bytes.",
]


def figures(text: str) -> tuple[object, ...]:
    oom = found(text)
    return oom.wanted, oom.own, oom.total, oom.free, oom.co_tenants


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "[default0]:", "[1,0]<stderr>:", "3: ", "(train pid=2657296) "])
def test_wrapping_changes_nothing(prefix: str) -> None:
    """A message wrapped anywhere, with a rank prefix on each line, is found."""
    for text, width in product(EVERYWHERE, [20, 40, 79, 80]):
        spans = [text[at : at + width] for at in range(0, len(text), width)]
        for lines in (spans, textwrap.wrap(text, width, break_on_hyphens=False)):
            wrapped = "\n".join(prefix + line for line in lines)
            assert figures(wrapped) == figures(text), f"broken at {width}:\n{wrapped}"


def test_colours_change_nothing() -> None:
    """Colours may occur anywhere in a message."""
    text = WITH_CO_TENANT.replace("memory", "\x1b[1;31mmemory\x1b[0m").replace("CUDA", "\x1b[36mCUDA")
    assert found(text) == found(WITH_CO_TENANT)


def test_the_last_message_counts() -> None:
    """A program may catch one error, continue, and die of a later one."""
    first = "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 6.00 GiB total capacity; 2.00 GiB"
    assert found(f"{first}\nsmaller batch\n{WITH_CO_TENANT}\n").wanted == gib(1.95)
    assert found(f"{WITH_CO_TENANT}\nsmaller batch\n{first}\n").wanted == GIB
    assert found(f"{WITH_CO_TENANT}\nRuntimeError: CUDA error: out of memory\n").framework == "cuda"


def test_the_shown_text_is_one_short_line() -> None:
    """The line is shown from its beginning, without colours, and shortened."""
    shown = found(f"epoch 3\n{WITH_CO_TENANT}\nbye").text
    assert shown.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has")
    assert shown.endswith("…")
    assert len(shown) <= 200
    assert (
        found("\x1b[31mRuntimeError: CUDA error: out of memory\x07\n").text == "RuntimeError: CUDA error: out of memory"
    )
    assert found("RuntimeError: CUDA er\nror: out of memory\nbye").text == "RuntimeError: CUDA er ror: out of memory"
    assert found(f"{'x' * 300} RuntimeError: CUDA error: out of memory").text == "CUDA error: out of memory"


TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/train.py", line 40, in step
    except torch.cuda.OutOfMemoryError: raise RuntimeError("CUDA error: out of memory")
    ~~~~~~~~~~~~^^^^^^^^^^^^^^^^^
  File "/home/ann/train.py", line 41, in other
    if ":CUDNN_STATUS_ALLOC_FAILED" in str(error) or "x: CUDA error: out of memory" in str(error):
ValueError: shapes do not match
"""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "except torch.cuda.OutOfMemoryError:\n    continue\n",
        "except tf.errors.ResourceExhaustedError:\n    continue\n",
        TRACEBACK,
        "\n".join(f"[rank1]: {line}" for line in TRACEBACK.splitlines()),
        "│ ❱ 40 │   raise RuntimeError('CUDA error: out of memory')   │\nValueError: no\n",
        '----> 1 raise RuntimeError("CUDA error: out of memory")\n\nValueError: no',
        'if "CUDA error: out of memory" in str(error):',
        "INFO no CUDA out of memory so far",
        "peak memory 3.2 GiB, CUDA out of memory avoided",
        "MemoryError",
        "numpy.core._exceptions.MemoryError: Unable to allocate 184. MiB for an array with shape (64, 26, 26, 3, 371)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to "
        "allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)",
        "Resource exhausted: MemoryError: Unable to allocate 184. MiB for an array",
        "ResourceExhaustedError: OOM when allocating tensor with shape[1,416,416,3] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 7.0. Some of your processes may have been killed",
        "Killed",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "what():  NCCL Error 1: unhandled cuda error",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid argument'",
        "2020-03-13 01:30:26.764321: W tensorflow/core/common_runtime/bfc_allocator.cc:243] Allocator (GPU_0_bfc) "
        "ran out of "
        "memory trying to allocate 16.39MiB with freed_by_count=0. The caller indicates that this is not a failure",
        "2020-03-13 01:30:26.765089: I tensorflow/stream_executor/cuda/cuda_driver.cc:801] failed to allocate 1.00G "
        "(1073741824 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical] Error Code 2: OutOfMemory (no further information)",
        "[TRT] [E] 1: Error Code 1: Cuda Runtime (out of memory)\n[TRT] [W] Requested amount of GPU memory "
        "(17179869184 bytes) could not be allocated.\n[TRT] [W] Skipping tactic 8 due to insufficient memory",
        "lightgbm.basic.LightGBMError: Out of Host Memory",
        "ERROR: LoadError: OutOfMemoryError()",
        "INFO 11-17 [worker.py:227] Available KV cache memory: 4.34 GiB",
        'raise ValueError("No available memory for the cache blocks. "',
        "Error invalid argument at line 380 in file /src/csrc/pythonInterface.c",
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/x/pinned.hpp:12: not enough host memory",
        "ResourceExhaustedError: Fail to alloc memory of 5242880 size, error code is 12. (cpu_allocator.cc:47)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ],
)
def test_other_text_does_not_match(text: str) -> None:
    """Source code, host memory, other CUDA errors, and harmless failed attempts of a framework do not match."""
    assert find_oom(text) is None


def test_text_after_quoted_source_is_read() -> None:
    """The exception below a traceback is found."""
    assert found(TRACEBACK.replace("ValueError: shapes do not match", WITH_CO_TENANT)).own == 966 * MIB


def oom(wanted: int | None = None, own: int | None = None, *, capped: bool = False) -> OutOfMemory:
    return OutOfMemory("torch", wanted, own, None, None, (), capped, "")


@pytest.mark.parametrize(
    ("said", "reserved", "peak", "own_fault"),
    [
        (oom(GIB, 3 * GIB), None, None, True),
        (oom(GIB, 3 * GIB), 3 * GIB, None, True),
        (oom(GIB, 3 * GIB), 4 * GIB, None, False),
        (oom(GIB, 3 * GIB, capped=True), 4 * GIB, None, True),
        (oom(GIB, 3 * GIB), 4 * GIB, 5 * GIB, True),
        (oom(), 4 * GIB, None, True),
        (oom(GIB), 4 * GIB, None, True),
        (oom(GIB), 4 * GIB, GIB, False),
        (oom(), 4 * GIB, 0, False),
        (oom(), 4 * GIB, 5 * GIB, True),
    ],
)
def test_own_fault(said: OutOfMemory, reserved: int | None, peak: int | None, own_fault: bool) -> None:
    """The job is at fault when its use exceeds the reservation, or when its use is unknown."""
    assert is_own_fault(said, reserved, peak) is own_fault


@pytest.mark.parametrize(
    ("said", "reserved", "peak", "floor"),
    [
        (oom(GIB, 3 * GIB), None, None, 4736 * MIB),
        (oom(GIB, 3 * GIB), 4 * GIB, None, 6 * GIB),
        (oom(64 * MIB, 64 * MIB), None, 10 * GIB, 10 * GIB),
        (oom(), 2 * GIB, None, 3 * GIB),
        (oom(GIB), None, 3 * GIB, 4736 * MIB),
        (oom(), None, None, 0),
        (oom(1, 0), None, None, 64 * MIB),
    ],
)
def test_floor(said: OutOfMemory, reserved: int | None, peak: int | None, floor: int) -> None:
    """The next reservation is the largest of: needed bytes plus 15 %, 1.5 times the last one, measured peak."""
    assert floor_after(said, reserved, peak) == floor


@pytest.mark.parametrize(
    "text",
    [
        "C" * 2**20,
        " " * 2**20,
        "7" * 2**20,
        "\n" * 2**20,
        "CUDA out of memory. Tried to allocate " * 2**15,
        "CUDA out of memory. Tried to allocate " + "7" * 2**20,
        "ResourceExhaustedError: {{" + "a" * 2**20 + "OOM when allocating tensor failed to allocate memory",
        "cuda error at " + "a:" * 2**19 + "out of memory",
        "cublas" * 2**17 + "the resource allocation failed",
        'File "' * 2**17,
        "\x1b[" * 2**19,
        "(" * 2**20 + "1,024 bytes out of memory",
    ],
    ids=lambda text: text[:24],
)
def test_long_texts_take_no_time(text: str) -> None:
    """The cost is linear in the length of the text."""
    begun = process_time()
    find_oom(text)
    assert process_time() - begun < 10.0  # what grows with the square takes hours


@QUIET
@given(
    st.text(alphabet="CUDA out of memory. Tried to allocate 2.5GiB(;)\n\x1b[1m:'", max_size=200) | st.text(max_size=200)
)
def test_any_text_is_accepted(text: str) -> None:
    """Any text gives an OutOfMemory or None."""
    find_oom(text)
    find_oom(f"{WITH_CO_TENANT[:90]}{text}")


@QUIET
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_surrounding_text_does_not_hide_a_message(before: bytes, after: bytes) -> None:
    """A message on separate lines is found in any log."""
    text = f"{before.decode(errors='replace')}\n{WITH_CO_TENANT}\n{after.decode(errors='replace')}"
    assert found(text).own == 966 * MIB
