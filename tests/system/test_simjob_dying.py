"""How simulated jobs run out of memory: of a device, of a limit, because of a grabbing neighbour, or of luck."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.logs.oom import find_oom
from stoker.devices.demo_job import TEXTS, Limits, UnknownOption, grab, limits
from support.simjobs import GIB, SimulatedMachine, finish, simulated_machine
from support.wait import PATIENCE_SECONDS, ending, wait_until

TORCH_2_1 = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has a total"
WORDS = {
    "torch": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has a total capacity of ",
    "torch-1": "RuntimeError: CUDA out of memory. Tried to allocate 30.00 GiB (GPU 0; 24.00 GiB total capacity; ",
    "torch-2.0": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB (GPU 0; 24.00 GiB ",
    "torch-2.1": f"{TORCH_2_1} capacty of 24.00 GiB",
    "torch-2.4": f"{TORCH_2_1} capacity of 24.00 GiB",
    "torch-fraction": "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit",
    "jax": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 32212254720 bytes.",
    "tf": "ResourceExhaustedError: OOM when allocating tensor with shape[8053063680] and type float on ",
    "cupy": "OutOfMemoryError: Out of memory allocating 32,212,254,720 bytes (allocated so far: 0 bytes).",
    "cublas": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cudnn": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "nccl": "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    "cuda": "RuntimeError: CUDA error: out of memory\n",
}
ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SimulatedMachine]:
    with simulated_machine("2x24G", tmp_path) as machine:
        yield machine


@pytest.mark.parametrize("text", TEXTS)
def test_it_dies_in_the_words_of_a_framework(machine: SimulatedMachine, text: str) -> None:
    """The message is that of the framework asked for, and Stoker knows what it means."""
    code, _, err = finish(machine.start("--memory", "30G", "--oom-text", text))
    assert code == 1
    assert WORDS[text] in err
    assert find_oom(err) is not None


def test_last_words_can_come_in_pieces(machine: SimulatedMachine) -> None:
    """With --split-oom the same text takes many small writes."""
    whole = finish(machine.start("--memory", "30G"))[2]
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "stoker.devices.demo_job", "--memory", "30G", "--split-oom"]
    with mine, theirs:
        mine.settimeout(PATIENCE_SECONDS)
        with ending(
            subprocess.Popen(command, env=machine.environment, stdout=subprocess.DEVNULL, stderr=theirs.fileno())
        ):
            theirs.close()
            spans = list(iter(lambda: mine.recv(4096), b""))
    assert b"".join(spans).decode() == whole
    assert max(map(len, spans)) == 16


def test_a_limit_of_the_server_is_kept(machine: SimulatedMachine) -> None:
    """With --cap the MPS limit of its device is the end of a job, though the device is nearly empty."""
    variables = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G,1=4G"}
    code, _, err = finish(machine.start("--memory", "6G", "--cap", "--seconds", "0", gpus="1,0", **variables))
    assert code == 1
    assert "GPU 1 has a total capacity of 24.00 GiB of which 24.00 GiB is free." in err
    assert finish(machine.start("--memory", "8G", "--cap", "--seconds", "0", **variables))[0] == 0
    assert finish(machine.start("--memory", "9G", "--seconds", "0", **variables))[0] == 0


def test_a_limit_of_the_framework_is_kept(machine: SimulatedMachine) -> None:
    """A PyTorch that knows its limit says so as it dies; one that does not know the word does not even start."""
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.25"}
    options = ("--memory", "7G", "--seconds", "0", "--cap")
    code, _, err = finish(machine.start(*options, **variables))
    assert code == 1
    assert WORDS["torch-fraction"] in err
    old = finish(machine.start(*options, "--torch-version", "2.9.1", **variables))
    message = "RuntimeError: Unrecognized CachingAllocator option: per_process_memory_fraction\n"
    assert old == (1, "", message)


def test_limits_are_read_from_the_environment() -> None:
    """The smaller limit counts; words that are no limit are passed over; only PyTorch knows fractions."""
    variables = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G,x,1=?",
        "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.5",
    }
    both = limits(variables, "torch", (2, 10))
    assert both == Limits({0: 8 * GIB}, 0.5)
    assert [both.of(0, 24 * GIB), both.of(0, 8 * GIB), both.of(1, 24 * GIB)] == [8 * GIB, 4 * GIB, 12 * GIB]
    assert [both.is_own(0, 24 * GIB), both.is_own(0, 8 * GIB)] == [False, True]
    assert limits(variables, "jax", (2, 9)).fraction is None
    assert limits({}, "torch", (2, 9)).of(0, GIB) is None
    with pytest.raises(UnknownOption):
        limits(variables, "torch", (2, 9))


@pytest.mark.parametrize(
    ("framework", "variables", "part"),
    [
        ("torch", {}, 0.0),
        ("tf", {}, 1.0),
        ("tf", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, 0.0),
        ("jax", {}, 0.75),
        ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 0.0),
        ("jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, 0.5),
        ("jax", {"XLA_CLIENT_MEM_FRACTION": ".3", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, 0.3),
    ],
)
def test_what_a_framework_grabs(framework: str, variables: dict[str, str], part: float) -> None:
    """TensorFlow takes everything and JAX three quarters, unless the environment says otherwise."""
    assert grab(variables, framework) == part


def test_grabbing_leaves_nothing_to_others(machine: SimulatedMachine) -> None:
    """TensorFlow takes what is left whatever it needs, so that the next one dies; JAX insists on its three quarters."""
    machine.start("--memory", "2G", "--seconds", "60")
    machine.wait_used(2 * GIB)
    machine.start("--memory", "1G", "--seconds", "60", "--framework", "tf")
    machine.wait_used(24 * GIB)
    machine.start("--framework", "jax", "--seconds", "60", gpus="1")
    machine.wait_used(18 * GIB, index=1)
    code, _, err = finish(machine.start("--framework", "jax", gpus="1"))
    assert (code, find_oom(err) is not None) == (1, True)
    modest = machine.start("--framework", "jax", gpus="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    machine.wait_used(19 * GIB, index=1)
    modest.kill()


def test_a_fault_kills_the_clients_of_the_same_server(machine: SimulatedMachine) -> None:
    """Clients of one MPS server on one device die together, in the same words; all others live."""
    server, other = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps-a"}, {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps-b"}
    victim = machine.start("--seconds", "60", **server)
    spared = [machine.start("--seconds", "60"), machine.start("--seconds", "60", **other)]
    elsewhere = machine.start("--seconds", "60", gpus="1", **server)
    machine.wait_used(3 * GIB)
    machine.wait_used(GIB, index=1)
    for job in (machine.start("--fault", "0", "--seconds", "60", **server), victim):
        code, _, err = finish(job)
        assert (code, ILLEGAL in err, find_oom(err)) == (1, True, None)
    assert [job.poll() for job in (*spared, elsewhere)] == [None] * 3
    machine.wait_used(2 * GIB)


def test_a_fault_without_a_server_is_ones_own(machine: SimulatedMachine) -> None:
    """Without MPS only the job at fault dies, in the end where no second was named."""
    neighbour = machine.start("--seconds", "60")
    machine.wait_used(GIB)
    code, out, err = finish(machine.start("--fault", "--seconds", "0.1", "--steps", "1"))
    assert (code, "step 1/1" in out, ILLEGAL in err) == (1, True, True)
    assert neighbour.poll() is None


def test_the_work_can_be_a_childs(machine: SimulatedMachine) -> None:
    """With --child the memory belongs to a process in a session of its own, which ends with its launcher."""
    job = machine.start("--child", "--memory", "3G", "--seconds", "60")
    machine.wait_used(3 * GIB)
    (process,) = machine.reading().processes
    assert process.pid != job.pid
    assert os.getsid(process.pid) == process.pid != os.getsid(job.pid)
    job.terminate()
    code, out, err = finish(job)
    assert (code, err) == (143, "")
    assert out.endswith("terminated, checkpoint saved\n")
    assert machine.reading().processes == ()


def test_a_launcher_ends_as_its_worker_does(machine: SimulatedMachine) -> None:
    """The code of the worker, and its death by a signal as shells tell it, are the launcher's own."""
    assert finish(machine.start("--child", "--memory", "30G"))[0] == 1
    assert finish(machine.start("--child", "--seconds", "0", "--fail", "7"))[0] == 7
    job = machine.start("--child", "--seconds", "60")
    wait_until(lambda: machine.reading().processes)
    os.kill(machine.reading().processes[0].pid, 9)
    assert finish(job)[0] == 137
