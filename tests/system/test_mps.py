"""`--mps` as people type it: clients of one daemon on one GPU, from the first to the last, and what goes wrong."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Ended
from stoker.devices.mps.daemon import daemon_paths
from stoker.devices.mps.supervisor import MpsDaemon
from support.background import Background
from support.cli import PROGRAM, Stoker, until
from support.local import wait_pid
from support.mps import NAME, client_words, log_of, real, scripted, scripted_smi
from support.users import made_users, reachable_directory, typed_by
from support.wait import wait_until

ONE = ("--sim", "1x24G", "--vram", "4G")
FAULT = "RuntimeError: CUDA error: an illegal memory access was encountered"


class Server:
    """The scripted MPS on the PATH of the user, and its daemon on the one simulated GPU."""

    def __init__(self, directory: Path, typing: Stoker) -> None:
        self.directory = directory
        self.program = scripted(directory)
        path = f"{directory}{os.pathsep}{typing.environment['PATH']}"
        typing.environment |= {"STOKER_MPS_DIR": str(directory / "mps"), "PATH": path}
        self.paths = daemon_paths("SIM-0", typing.environment)
        self.control = MpsDaemon(self.program, self.paths, typing.environment)

    @property
    def log(self) -> str:
        return log_of(self.paths)

    def wait_stopped(self) -> None:
        wait_until(lambda: self.log and self.control.holder() is None)


@pytest.fixture
def short() -> Iterator[Path]:
    with reachable_directory() as directory:
        yield directory


@pytest.fixture
def server(stoker: Stoker, short: Path) -> Server:
    return Server(short, stoker)


@pytest.fixture
def queue(background: Background, short: Path) -> Server:
    background.environment["STOKER_SIM"] = "1x24G"
    return Server(short, background)


def client(path: str, *manner: str) -> str:
    """A shell line that runs a client, which writes its number to a file."""
    return shlex.join(client_words(Path(path), *manner))


class TestRun:
    """In the foreground."""

    def test_together(self, stoker: Stoker, server: Server) -> None:
        """Two clients share a GPU and its daemon, each with its own part, and the daemon leaves after the last."""
        told = "env | grep ^CUDA | sort > env.$STOKER_JOB_ID"
        stoker.write("jobs", *[f"{told}; echo >> here; until [ $(wc -l < here) = 2 ]; do sleep 0.02; done"] * 2)
        outcome = stoker("run", *ONE, "--mps=30", "jobs")
        assert outcome.code == 0, outcome.err
        expected = [
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
            f"CUDA_MPS_LOG_DIRECTORY={server.paths.log}",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
            f"CUDA_MPS_PIPE_DIRECTORY={server.paths.pipe}",
            "CUDA_VISIBLE_DEVICES=0",
        ]
        assert stoker.lines("env.1") == stoker.lines("env.2") == expected
        server.wait_stopped()
        assert server.log.count("Starting control daemon") == 1
        assert "Cmd:quit" in server.log

    def test_alone_on_the_line(self, stoker: Stoker, server: Server) -> None:
        """--mps without a percentage does not take the word behind it for one, nor one of the command's."""
        outcome = stoker(
            "run", *ONE, "--mps", "sh", "-c", "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $0 $1", "--mps", "5"
        )
        assert (outcome.code, outcome.out) == (0, "--mps 5\n"), outcome.err
        server.wait_stopped()

    def test_daemon_crashes(self, stoker: Stoker, server: Server) -> None:
        """A daemon that was killed meanwhile is started again for the next client."""
        stoker.write("jobs", client("first") + " & wait $!; true", "echo $CUDA_MPS_PIPE_DIRECTORY >> second")
        run = stoker.start("run", *ONE, "-j", "1", "--mps", "jobs")
        wait_until((stoker.cwd / "first").exists)
        holder = server.control.holder()
        assert holder is not None
        os.kill(holder, signal.SIGKILL)
        assert stoker.finish(run).code == 0
        assert stoker.lines("second") == [server.paths.pipe]
        server.wait_stopped()
        assert server.log.count("Starting control daemon") == 2

    def test_does_not_start(self, stoker: Stoker, server: Server) -> None:
        """Where the daemon refuses to start, the job is refused with the reason."""
        outcome = stoker("run", *ONE, "--mps", "--", "touch", "ran", SCRIPTED_MPS="refuse")
        assert outcome.code == 126
        assert "the MPS daemon does not start: Cannot access CUDA_MPS_PIPE_DIRECTORY=" in outcome.err
        assert not (stoker.cwd / "ran").exists()

    def test_does_not_start_and_need_not(self, stoker: Stoker, server: Server) -> None:
        """Where that was allowed, the job runs without it."""
        command = ("sh", "-c", "echo ${CUDA_MPS_PIPE_DIRECTORY-none}")
        outcome = stoker("run", *ONE, "--mps", "--mps-optional", "--", *command, SCRIPTED_MPS="refuse")
        assert (outcome.code, outcome.out) == (0, "none\n"), outcome.err

    def test_interrupted_while_it_hangs(self, stoker: Stoker, server: Server) -> None:
        """A program that hangs does not delay an interrupt, and nothing has run."""
        run = stoker.start("run", *ONE, "--mps", "--", "touch", "ran", environment={"SCRIPTED_MPS": "hang"})
        wait_until(lambda: Path(server.paths.clients).exists())
        run.send_signal(signal.SIGINT)
        assert stoker.finish(run).code == 130
        assert not (stoker.cwd / "ran").exists()

    def test_exclusive(self, stoker: Stoker, server: Server) -> None:
        """mps_exclusive has the compute mode changed; where that is not permitted, all else goes on."""
        scripted_smi(server.directory, 'case "$*" in *query*) echo Default;; *) echo "No permission"; exit 4;; esac')
        outcome = stoker("run", *ONE, "--mps", "--", "true", STOKER_MPS_EXCLUSIVE="true")
        assert outcome.code == 0, outcome.err
        assert "-c EXCLUSIVE_PROCESS" in (server.directory / "asked").read_text()
        server.wait_stopped()

    def test_fault_of_one(self, stoker: Stoker, server: Server) -> None:
        """A fatal error beside other clients costs no retry: the job runs once more, alone."""
        fails_in_company = f"echo >> here; {until('both')}; [ -e again ] || {{ touch again; echo '{FAULT}'; exit 1; }}"
        stays = f"echo >> here; {until('again')}"
        stoker.write("jobs", fails_in_company, stays)
        run = stoker.start("run", *ONE, "--mps", "jobs")
        stoker.wait_lines("here", 2)
        (stoker.cwd / "both").touch()
        outcome = stoker.finish(run)
        assert outcome.code == 0, outcome.err
        assert len(stoker.lines("here")) == 3
        server.wait_stopped()


def test_real(short: Path) -> None:
    """NVIDIA's own daemon serves an ordinary user's clients from the first to the last."""
    bin_directory = short / "bin"
    bin_directory.mkdir()
    real(bin_directory)
    short.chmod(0o1777)
    with contextlib.ExitStack() as closing:
        typing = closing.enter_context(made_users(1))[0] if os.geteuid() == 0 else None
        words = [PROGRAM, "run", *ONE, "--mps=25", "--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY; sleep 0.2"]
        environment = {
            **os.environ,
            "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}",
            "STOKER_STATE": str(short / "state"),
            "STOKER_LEDGER": str(short / "ledger"),
            "STOKER_MPS_DIR": str(short / "mps"),
        }
        typed = typed_by(typing, *words) if typing else words
        done = subprocess.run(
            typed, env=environment, cwd=short, check=False, capture_output=True, text=True, timeout=60
        )
        paths = daemon_paths("SIM-0", environment)
        assert (done.returncode, done.stdout) == (0, f"{paths.pipe}\n"), done.stderr
        wait_until(lambda: "Cmd:quit" in log_of(paths))
        wait_until(lambda: MpsDaemon(str(bin_directory / NAME), paths, environment).holder() is None)


class TestQueue:
    """In the background."""

    def test_cancel(self, background: Background, queue: Server) -> None:
        """A stubborn client that is cancelled has its work ended before it is killed, and its co-tenant goes on."""
        ids = [_submit(background, client(name, "stubborn")) for name in ("one", "two")]
        pid, _ = (wait_pid(background.cwd / name) for name in ("one", "two"))
        assert background("cancel", "--grace", "0", str(ids[0])).code == 0
        background.wait_over(ids[0])
        assert "terminate_client" in queue.log
        assert queue.log.index(f" {pid}\n") < queue.log.index(f"Client {pid} disconnected")
        background.wait_word("running", ids[1])
        background("cancel", "--grace", "0", str(ids[1]))
        queue.wait_stopped()

    def test_time_limit(self, background: Background, queue: Server) -> None:
        """A client that does not end at its limit has its work ended before it is killed."""
        job = _submit(background, client("pid"), "--time", "1h", "--grace", "0")
        pid = str(wait_pid(background.cwd / "pid"))
        background.limit(job, 0.01)
        background.wait_over(job)
        assert background.word(job) == "timeout"
        assert background("logs", str(job)).out == "welcome\nterminated\n"
        queue.wait_stopped()
        assert queue.log.index(f" {pid}\n") < queue.log.index(f"Client {pid} disconnected")
        assert "terminate_client" in queue.log

    def test_engine_dies(self, background: Background, queue: Server) -> None:
        """The daemon stays for clients of an engine that was killed, and leaves with the last of them all the same."""
        job = _submit(background, f"touch began; {until('go')}")
        wait_until((background.cwd / "began").exists)
        background.kill_engine()
        assert queue.control.alive()
        background.open_gate("go")
        queue.wait_stopped()
        background.start_engine()
        background.wait_over(job)
        assert background.ended(job).result == "done"

    def test_two_engines(self, background: Background, queue: Server) -> None:
        """Clients of several engines share the daemon, which leaves after the last of all."""
        _submit(background, f"touch began; {until('go')}")
        wait_until((background.cwd / "began").exists)
        outcome = background("run", *ONE, "--mps", "--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY")
        assert outcome.out == f"{queue.paths.pipe}\n", outcome.err
        assert queue.control.alive()
        background.open_gate("go")
        queue.wait_stopped()
        assert queue.log.count("Starting control daemon") == 1

    def test_cancel_before_it_is_ready(self, background: Background, queue: Server) -> None:
        """A job that waits for a daemon that hangs can be cancelled."""
        background.environment["SCRIPTED_MPS"] = "hang"
        job = _submit(background, "true")
        background.wait_word("starting", job)
        assert "waiting for the MPS daemon of its GPU" in background("status", "--plain").out
        background("cancel", str(job))
        background.wait_over(job)
        state = background.job(job).state
        assert isinstance(state, Ended)
        assert state.result == "cancelled"


class TestWithout:
    """Where MPS cannot be had."""

    @pytest.mark.parametrize("verb", ["run", "submit"])
    def test_program_is_missing(self, stoker: Stoker, verb: str) -> None:
        """One sentence, and nothing runs."""
        outcome = stoker(verb, *ONE, "--mps", "--", "true", PATH=_without_mps(stoker))
        assert (outcome.code, outcome.out) == (5, "")
        assert "nvidia-cuda-mps-control is not on the PATH" in outcome.err
        assert "--mps-optional" in outcome.err

    def test_program_is_missing_and_need_not_be_there(self, stoker: Stoker) -> None:
        """It is said once that the jobs run without."""
        stoker.write(
            "jobs", "echo ${CUDA_MPS_PIPE_DIRECTORY-none} >> ran", "echo ${CUDA_MPS_PIPE_DIRECTORY-none} >> ran"
        )
        outcome = stoker("run", *ONE, "--mps", "--mps-optional", "jobs", PATH=_without_mps(stoker))
        assert outcome.code == 0, outcome.err
        assert outcome.err.count("--mps is ignored: nvidia-cuda-mps-control is not on the PATH") == 1
        assert stoker.lines("ran") == ["none", "none"]

    def test_only_names(self, stoker: Stoker, server: Server) -> None:
        """Devices that are only names have no MPS."""
        outcome = stoker("run", "--devices", "a,b", "--vram", "4G", "--mps", "--", "true")
        assert outcome.code == 5
        assert "only names" in outcome.err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--mps=101", "--vram", "4G"], "percentage from 1 to 100"),
        (["--mps"], "this job is exclusive"),
        (["--mps", "--vram", "4G", "-G", "2"], "can use only one GPU"),
    ],
)
def test_what_makes_no_sense(stoker: Stoker, words: list[str], what: str) -> None:
    """It is refused with one sentence and a hint, before any daemon is searched."""
    outcome = stoker("run", "--sim", "2x24G", *words, "--", "true")
    assert (outcome.code, outcome.out) == (2, "")
    assert what in outcome.err
    assert len(outcome.err.splitlines()) == 2


def _submit(background: Background, line: str, *options: str) -> int:
    outcome = background("submit", "--parsable", "--vram", "4G", "--mps", *options, "-s", line)
    assert outcome.code == 0, outcome.err
    return int(outcome.out)


def _without_mps(stoker: Stoker) -> str:
    """The path, without a directory that has the program by chance."""
    directories = stoker.environment["PATH"].split(os.pathsep)
    return os.pathsep.join(each for each in directories if not Path(each, "nvidia-cuda-mps-control").exists())
