"""The stand-in behaves as NVIDIA's library: asked by nvidia-ml-py, and by programs that are not ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from support.nvml import (
    GIB,
    Bench,
    FakeAccount,
    FakeGpu,
    FakeMachine,
    FakeProcess,
    compiled,
    needed,
)
from support.terminal import open_terminal
from support.wait import PATIENCE_SECONDS, ending

A100 = FakeGpu("GPU-11111111-2222-3333-4444-000000000000", utilisation=87, celsius=61, power_milliwatts=243_000)
RTX = FakeGpu("GPU-11111111-2222-3333-4444-000000000001", name="NVIDIA GeForce RTX 4090", total=24 * GIB)


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    """A machine without a C compiler skips these tests, but in CI they fail."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="cc missing"):
        compiled(tmp_path)


def test_a_dead_process_is_not_listed_and_holds_nothing(driver: Bench) -> None:
    """When a process dies the driver forgets it and takes its memory back, even before it is waited for."""
    with ending(subprocess.Popen(["sleep", "60"])) as child:
        driver.write(FakeMachine((FakeGpu("GPU-1", processes=(FakeProcess(child.pid, GIB),)),)))
        assert [found.pid for found in pynvml.nvmlDeviceGetComputeRunningProcesses(handle())] == [child.pid]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle()) == []
        assert pynvml.nvmlDeviceGetMemoryInfo(handle(), pynvml.nvmlMemory_v2).used == 0


def test_accounting_outlives_the_process(driver: Bench) -> None:
    """Accounting keeps the peak of a process that is gone, and only root may switch it."""
    account = FakeAccount(1_000_000_000, 7 * GIB, utilisation=55, milliseconds=1234)
    driver.write(FakeMachine((FakeGpu("GPU-1", accounting=10, accounts=(account,)),)))
    assert pynvml.nvmlDeviceGetAccountingMode(handle()) == pynvml.NVML_FEATURE_ENABLED
    assert pynvml.nvmlDeviceGetAccountingPids(handle()) == [account.pid]
    stats = pynvml.nvmlDeviceGetAccountingStats(handle(), account.pid)
    assert (stats.maxMemoryUsage, stats.gpuUtilization, stats.time, stats.isRunning) == (7 * GIB, 55, 1234, 0)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetAccountingStats(handle(), os.getpid())
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceSetAccountingMode(handle(), pynvml.NVML_FEATURE_DISABLED)


def test_jobs_can_use_the_gpus(driver: Bench) -> None:
    """A job holds memory along its curve, its peak stays in its account, and where a GPU is full it dies."""
    driver.write(FakeMachine((FakeGpu("GPU-1", total=10 * GIB, reserved=0, accounting=10),)))
    with driver.start("--curve", "0:2G,0.1:8G,0.2:2G", "--seconds", "0.4", gpus="GPU-1") as job:
        assert job.wait(60) == 0
    stats = pynvml.nvmlDeviceGetAccountingStats(handle(), job.pid)
    assert 2 * GIB < stats.maxMemoryUsage <= 8 * GIB
    assert (stats.isRunning, pynvml.nvmlDeviceGetComputeRunningProcesses(handle())) == (0, [])
    with driver.start("--memory", "11G", gpus="GPU-1") as large:
        assert "torch.OutOfMemoryError: CUDA out of memory." in large.communicate(timeout=60)[1]
    assert large.returncode == 1


@pytest.fixture
def busy(bench: Bench) -> Iterator[int]:
    """A machine of two GPUs with a real process on the first; its PID."""
    with ending(subprocess.Popen(["sleep", "300"])) as child:
        process = FakeProcess(child.pid, 6 * GIB, load=43)
        gpu = FakeGpu(A100.uuid, utilisation=87, celsius=61, accounting=4000, processes=(process,))
        machine = FakeMachine((gpu, RTX))
        bench.write(machine)
        yield child.pid
        child.kill()


def judged(bench: Bench, *command: str) -> list[str]:
    """What a program beside our own interpreter prints, with the stand-in as its driver."""
    program = Path(sys.executable).parent / command[0]
    environment = {**bench.environment, "COLUMNS": "120", "TERM": "dumb"}
    done = subprocess.run(
        [program, *command[1:]], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def line_with(lines: list[str], *words: str) -> str:
    """The line that has all these words in it."""
    found = [line for line in lines if all(word in line for word in words)]
    assert found, "\n".join(lines)
    return found[0]


def test_gpustat_shows_the_machine(bench: Bench, busy: int) -> None:
    """Gpustat, unmodified, prints names, temperature, utilisation, memory and the process."""
    lines = judged(bench, "gpustat", "--no-color", "--no-header", "--show-pid", "--show-user")
    line_with(lines, "[0]", A100.name, "61°C", "87 %", "6144 / 40960 MB", f"/{busy}(6144M)")
    assert "(" not in line_with(lines, "[1]", RTX.name, "0 / 24576 MB")


def test_nvitop_shows_the_machine(bench: Bench, busy: int) -> None:
    """Nvitop, unmodified, prints names, bus, utilisation, memory and the process."""
    lines = judged(bench, "nvitop", "-1", "--ascii")
    line_with(lines, "A100-SXM4-40GB", "00000000:07:00.0")
    line_with(lines, "61C", "6144MiB / 40.00GiB", "87%")
    line_with(lines, "GeForce RTX 4090", "00000000:08:00.0")
    line_with(lines, f" {busy} C", "6144MiB", " 43 ", "sleep 300")


def test_nvtop_shows_the_machine(bench: Bench, busy: int, tmp_path: Path) -> None:
    """Nvtop, unmodified, draws names, temperature, memory and the process with its utilisation."""
    program = needed("nvtop")
    driver = {name: bench.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
    with open_terminal(tmp_path, HOME=str(tmp_path), **driver) as terminal:
        terminal.start([program, "--no-plot", "--no-color"], 140, 30)
        lines = terminal.wait_for("6.500Gi/40.000Gi", "0.500Gi/24.000Gi", f" {busy} ", "43%").splitlines()
    line_with(lines, "Device 0", A100.name)
    line_with(lines, "61°C", "56 / 400 W")
    line_with(lines, "Device 1", RTX.name)
    line_with(lines, str(busy), "6144MiB")


def test_slurmd_finds_the_gpus(bench: Bench, busy: int, tmp_path: Path) -> None:
    """Slurm's AutoDetect=nvml, unmodified, finds type, device file and cores of each GPU."""
    assert busy
    program, plugin = needed("slurmd"), needed("gpu_nvml.so", slurm_plugins())
    plugins = [*Path("/usr/lib").glob("*/slurm-wlm"), Path(plugin).parent]
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": "localhost",
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "ProctrackType": "proctrack/pgid",
        "PluginDir": ":".join(map(str, plugins)),
        "GresTypes": "gpu",
        "SlurmdSpoolDir": tmp_path,
        "SlurmdLogFile": tmp_path / "log",
        "SlurmdPidFile": tmp_path / "pid",
        "NodeName": f"{socket.gethostname().partition('.')[0]} CPUs={os.cpu_count()} Gres=gpu:a100:1,gpu:rtx_4090:1",
        "PartitionName": "all Nodes=ALL",
    }
    (tmp_path / "slurm.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (tmp_path / "gres.conf").write_text("AutoDetect=nvml\n")
    done = subprocess.run(
        [program, "-G", "-f", tmp_path / "slurm.conf"],
        env=bench.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    line_with(lines, "2 GPU system device(s) detected")
    line_with(lines, "Name=gpu Type=a100 Count=1", "File=/dev/nvidia0 Cores=0")
    line_with(lines, "Name=gpu Type=rtx_4090 Count=1", "File=/dev/nvidia1 Cores=0")


def slurm_plugins() -> str:
    """Where .ci/fetch_gpu_tools puts Slurm's plugin."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return os.environ.get("STOKER_SLURM_NVML") or str(Path(cache, "stoker-slurm-nvml"))
