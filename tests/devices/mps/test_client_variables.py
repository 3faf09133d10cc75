"""The variables of a client of MPS: where its daemon is, and its limits."""

from __future__ import annotations

from stoker.core.launch import without_given
from stoker.devices.mps.client import client_variables
from stoker.devices.mps.daemon import DaemonPaths

PATHS = DaemonPaths("/tmp/m/gpu")
NAMES = "CUDA_MPS_PIPE_DIRECTORY,CUDA_MPS_LOG_DIRECTORY"
FOUND = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/m/gpu/pipe", "CUDA_MPS_LOG_DIRECTORY": "/tmp/m/gpu/log"}
LIMITS = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


def test_all_of_the_gpu() -> None:
    """Without a limit on threads or memory it only learns where its daemon is."""
    assert client_variables(PATHS, 100, None, {}) == {**FOUND, "STOKER_MPS_GIVEN": NAMES}


def test_a_part_of_it() -> None:
    """Threads in percent, and memory in whole MiB that are never fewer than were reserved."""
    assert client_variables(PATHS, 25, 3 * 2**30 + 1, {}) == {
        **FOUND,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3073M",
        "STOKER_MPS_GIVEN": ",".join([NAMES, *LIMITS]),
    }


def test_values_of_the_user() -> None:
    """Values of the user win, except for the daemon, which is ours."""
    own = {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_LOG_DIRECTORY": "/tmp/log",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
    }
    assert client_variables(PATHS, 25, 2**30, own) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/m/gpu/pipe",
        "STOKER_MPS_GIVEN": "CUDA_MPS_PIPE_DIRECTORY",
    }


def test_not_handed_on() -> None:
    """What a job was given is no part of what it submits; the user's own values are."""
    own = {"HOME": "/home", "CUDA_MPS_CLIENT_PRIORITY": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"}
    inside = {**own, **client_variables(PATHS, 25, 2**30, own)}
    assert without_given(inside) == own
    assert without_given(own) == own
