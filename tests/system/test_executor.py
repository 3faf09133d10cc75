"""The Executor: functions through the durable queue, with the contract of concurrent.futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.core.errors import UsageError
from support.disk import fill, small_disk
from support.python_program import Programs, programs_in
from support.wait import line_from, wait_until


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """One queue for all tests here; each looks only at its own jobs."""
    with programs_in(tmp_path_factory.mktemp("executor")) as made:
        yield made


@pytest.fixture
def executor(queue: Programs) -> Iterator[stoker.Executor]:
    """One whose jobs share the GPUs; what a test leaves is cancelled."""
    made = stoker.Executor(gpus=1, vram="1G")
    yield made
    for job in list(made._open):
        job.cancel()


def gate(queue: Programs, name: str) -> str:
    """The path of a file that functions wait for."""
    return str(queue.cwd / name)


def wait_for(path: str, times: int = 1) -> Any:
    """A function that waits until the file is there, and returns its name, so many times over."""

    def waiting() -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.01)
        return path * times

    return waiting


class TestResults:
    """What comes back."""

    def test_function_runs_in_a_process_of_its_own_with_its_gpu(self, executor: stoker.Executor) -> None:
        """GPUs are set before Python starts; directory, path and interpreter are those of the submitter."""

        def look(factor: int, *, plus: int) -> tuple[Any, ...]:
            gpu = os.environ["CUDA_VISIBLE_DEVICES"]
            return 2 * factor + plus, os.getpid(), gpu, Path.cwd(), sys.path, sys.executable

        job = executor.submit(look, 20, plus=2)
        value, process, gpu, cwd, path, executable = job.result(60)
        assert (value, cwd, executable) == (42, Path.cwd(), sys.executable)
        assert process != os.getpid()
        assert [gpu] == job.devices
        assert path == [os.path.abspath(entry) for entry in sys.path]
        assert (job.state, job.exit_code, job.name) == ("done", 0, "look")

    def test_exception_comes_with_the_traceback_of_the_job(self, executor: stoker.Executor) -> None:
        """Its type and arguments are the same, and the cause tells the lines where it came from."""

        def fail() -> None:
            raise KeyError("beta")  # here

        job = executor.submit(fail)
        with pytest.raises(KeyError, match="beta") as raised:
            job.result(60)
        shown = "".join(traceback.format_exception(raised.value))
        assert 'raise KeyError("beta")  # here' in shown
        assert job.exception() is raised.value
        assert "KeyError" in job.stderr()
        assert job.state == "failed"

    def test_exception_that_cannot_travel_is_told(self, executor: stoker.Executor) -> None:
        """Its type, message and traceback arrive all the same."""

        def fail() -> None:
            error = ValueError("a lock")
            error.lock = threading.Lock()  # type: ignore[attr-defined]
            raise error

        with pytest.raises(stoker.JobFailed, match=r"raised ValueError: a lock") as raised:
            executor.submit(fail).result(60)
        assert "raise error" in "".join(traceback.format_exception(raised.value))

    def test_exception_that_passes_on_other_arguments(self, executor: stoker.Executor) -> None:
        """Many cannot be created anew from their arguments; they are of their own type all the same, and whole."""

        class Odd(Exception):
            def __init__(self, first: int, second: int) -> None:
                super().__init__(f"{first} and {second}")
                self.second = second

        def fail() -> None:
            raise Odd(1, 2)

        with pytest.raises(Odd, match="1 and 2") as raised:
            executor.submit(fail).result(60)
        assert raised.value.second == 2
        assert "raise Odd(1, 2)" in "".join(traceback.format_exception(raised.value))

    def test_output_and_reports_can_be_read(self, executor: stoker.Executor) -> None:
        """What the function prints and reports is there beside its result."""

        def talk() -> None:
            import stoker

            print("to the log")
            print("and this", file=sys.stderr)
            stoker.report(step=3, loss=0.5)

        job = executor.submit(talk)
        assert job.result(60) is None
        assert job.stdout() == job.stderr()
        assert sorted(job.stdout().splitlines()) == ["and this", "to the log"]
        assert job.log is not None
        assert job.log.read_text() == job.stdout()
        (told,) = job.reports()
        assert (told["step"], told["loss"], told["attempt"]) == (3, 0.5, 1)

    def test_large_results_and_arguments(self, executor: stoker.Executor) -> None:
        """Forty megabytes there and back."""
        data = os.urandom(1_000_000) * 40
        assert executor.submit(lambda sent: sent[::-1], data).result(60) == data[::-1]

    def test_classes_of_the_program_come_back_as_such(self, queue: Programs) -> None:
        """A class of `__main__` travels by value, and is the same class when it returns."""
        said = queue.run_script("""
            import stoker

            class Point:
                def __init__(self, x): self.x = x

            def moved(point): return Point(point.x + 1)

            back = stoker.Executor(vram="1G").submit(moved, Point(1)).result(60)
            print(type(back) is Point, back.x)
        """)
        assert said == "True 2\n"

    def test_functions_and_classes_of_the_program_can_be_pickled_in_the_job(self, queue: Programs) -> None:
        """Pools in a job find the functions of the program that submitted it, whatever these are called."""
        said = queue.run_script("""
            import functools, multiprocessing, pickle, stoker

            class Net:
                weight = 3

            def twice(function):
                return functools.wraps(function)(lambda *given: 2 * function(*given))

            @twice
            def main(number):
                return number * Net.weight

            def train(numbers):
                found = [type(pickle.loads(pickle.dumps(Net()))) is Net]
                for way in "fork", "spawn":
                    with multiprocessing.get_context(way).Pool(1) as pool:
                        found += pool.map(main, numbers)
                return found, Net()

            executor = stoker.Executor(vram="1G")
            found, net = executor.submit(train, [1, 2]).result(60)
            print(found, type(net) is Net, *[found for found, _ in executor.map(train, [[3]], chunksize=2)])
        """)
        assert said == "[True, 6, 12, 6, 12] True [True, 18, 18]\n"

    def test_a_retry_may_mend_it(self, queue: Programs) -> None:
        """The result is that of the last run, whatever the one before left."""
        mark = queue.cwd / "mended"

        def at_second_try() -> str:
            if not mark.exists():
                mark.touch()
                raise OSError("not yet")
            return os.environ["STOKER_ATTEMPT"]

        assert stoker.Executor(vram="1G", retries=1).submit(at_second_try).result(60) == "2"

    def test_run_that_dies_after_one_that_returned(self, queue: Programs, executor: stoker.Executor) -> None:
        """A result of an earlier run does not count for the last one."""
        mark = queue.cwd / "second"

        def once() -> None:
            if mark.exists():
                os.kill(os.getpid(), signal.SIGKILL)

        job = executor.submit(once)
        job.result(60)
        mark.touch()
        assert queue("retry", str(job.id)).code == 0
        with pytest.raises(stoker.JobFailed, match="SIGKILL"):
            stoker.job(job.id).result(60)


class TestContract:
    """What programs for concurrent.futures count on."""

    def test_map_keeps_the_order(self, executor: stoker.Executor) -> None:
        """Also with several calls in a job, and iterables of different lengths."""
        assert list(executor.map(pow, [2, 3, 4], [5, 2])) == [32, 9]
        assert list(executor.map(lambda number: -number, range(5), chunksize=2)) == [0, -1, -2, -3, -4]
        assert list(executor.map(pow, [], [])) == []

    def test_map_gives_up_in_time(self, queue: Programs, executor: stoker.Executor) -> None:
        """After the time-out those that have not started are cancelled."""
        closed = gate(queue, "map")
        results = stoker.Executor(gpus=1).map(lambda _: wait_for(closed)(), range(4), timeout=0.5)
        last = stoker.jobs()[-1]
        with pytest.raises(TimeoutError):
            next(results)
        wait_until(last.cancelled)
        queue.open_gate("map")

    def test_array(self, queue: Programs, executor: stoker.Executor) -> None:
        """map_array makes the tasks of one array, whose command tells them apart for people."""
        jobs = executor.map_array(lambda rate, seed: (rate, seed), [0.1, 0.2], [1, 2], at_once=1)
        assert [job.result(60) for job in jobs] == [(0.1, 1), (0.2, 2)]
        assert [job.shown_id for job in jobs] == [f"{jobs[0].id}.0", f"{jobs[0].id}.1"]
        record = queue.job(jobs[1].id)
        assert record.command.words[-2:] == ("rate=0.2", "seed=2")
        assert record.spec.at_once == 1

    def test_max_workers_limits_the_jobs_of_an_executor(self, queue: Programs) -> None:
        """Single calls and arrays share the limit; jobs of other executors do not count."""
        pool = stoker.Executor(2, gpus=1, vram="1G")
        wait = wait_for(gate(queue, "pool"))
        jobs = [pool.submit(wait), *pool.map_array(lambda _: wait(), [1, 2])]
        other = stoker.Executor(1, gpus=1, vram="1G").submit(pow, 2, 3)
        assert other.result(60) == 8

        def reasons() -> list[str]:
            ours = [job.shown_id for job in jobs]
            return [row["why"] for row in stoker.status() if row["label"] in ours and row["state"] == "queued"]

        wait_until(lambda: [job.state for job in jobs].count("running") == 2 and bool(reasons()) and all(reasons()))
        (why,) = reasons()
        assert "executor" in why
        assert "2" in why
        queue.open_gate("pool")
        assert len([job.result(60) for job in jobs]) == 3

    def test_an_initializer_runs_before_each_call(self, queue: Programs) -> None:
        """In the process of the call; names and arguments are those of the function, and its errors are raised."""

        def prepare(name: str, value: str) -> None:
            os.environ[name] = value

        def look(name: str) -> str:
            return os.environ[name]

        executor = stoker.Executor(gpus=1, vram="1G", initializer=prepare, initargs=("PREPARED", "yes"))
        job = executor.submit(look, "PREPARED")
        assert (job.result(60), job.name) == ("yes", "look")
        assert queue.job(job.id).command.words[-1] == "name=PREPARED"
        assert list(executor.map(look, ["PREPARED"] * 3, chunksize=2)) == ["yes"] * 3
        failing = stoker.Executor(gpus=1, vram="1G", initializer=divmod, initargs=(1, 0)).submit(pow, 2, 3)
        with pytest.raises(ZeroDivisionError):
            failing.result(60)

    def test_names_of_submitit(self, executor: stoker.Executor) -> None:
        """What its jobs have and needs no other idea here: the id as text, and the results of all tasks."""
        single, *tasks = [executor.submit(pow, 2, 3), *executor.map_array(pow, [2, 3], [2, 2])]
        assert single.job_id == str(single.id)
        assert [job.job_id for job in tasks] == [f"{tasks[0].id}.0", f"{tasks[0].id}.1"]
        assert [job.results() for job in tasks] == [[4], [9]]

    def test_functions_of_the_standard_library(self, queue: Programs, executor: stoker.Executor) -> None:
        """as_completed, wait, callbacks and asyncio treat the jobs as any futures."""
        slow = executor.submit(wait_for(gate(queue, "slow")))
        fast = executor.submit(pow, 2, 2)
        seen: list[Any] = []
        fast.add_done_callback(lambda future: seen.append(future.result(60)))
        assert next(concurrent.futures.as_completed([slow, fast], 30)) is fast
        done = concurrent.futures.wait([slow, fast], 60, concurrent.futures.FIRST_COMPLETED)
        assert (done.done, done.not_done) == ({fast}, {slow})
        wait_until(lambda: seen == [4])
        queue.open_gate("slow")

        async def both() -> Any:
            return await asyncio.gather(asyncio.wrap_future(slow), asyncio.wrap_future(fast))

        assert asyncio.run(both()) == [gate(queue, "slow"), 4]

    def test_wait_returns_at_the_first_exception(self, queue: Programs, executor: stoker.Executor) -> None:
        """A failed job, of a function or of a command, ends wait(FIRST_EXCEPTION); its own error is still read."""
        slow = executor.submit(wait_for(gate(queue, "unfinished")))
        with concurrent.futures.ThreadPoolExecutor() as threads:
            for failing, error in (
                (executor.submit(divmod, 2, 0), ZeroDivisionError),
                (stoker.submit("sleep 0.5; exit 3", gpus=0), stoker.JobFailed),
            ):
                waiter = threads.submit(
                    concurrent.futures.wait, [slow, failing], return_when=concurrent.futures.FIRST_EXCEPTION
                )
                try:
                    done = waiter.result(60)
                finally:
                    if not waiter.done():
                        queue.open_gate("unfinished")
                assert (done.done, done.not_done) == ({failing}, {slow})
                assert isinstance(failing.exception(60), error)
                with pytest.raises(error):
                    failing.result(60)
        queue.open_gate("unfinished")
        assert slow.result(60) == gate(queue, "unfinished")

    def test_time_out_of_result(self, queue: Programs, executor: stoker.Executor) -> None:
        """It is that of the waiting, not of the job."""
        job = executor.submit(wait_for(gate(queue, "late")))
        with pytest.raises(TimeoutError):
            job.result(0.05)
        with pytest.raises(TimeoutError):
            job.exception(0.05)
        assert not job.wait(0.05)
        wait_until(job.running)
        queue.open_gate("late")
        assert job.wait(60)
        assert not job.running()

    def test_end_of_the_block_waits(self, queue: Programs) -> None:
        """After it nothing more is taken."""
        with stoker.Executor(vram="1G") as executor:
            jobs = [executor.submit(pow, 2, exponent) for exponent in range(3)]
        assert all(job.done() for job in jobs)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(pow, 2, 2)

    def test_shutdown_that_cancels(self, queue: Programs) -> None:
        """What runs goes on; what waits does not start."""
        executor = stoker.Executor(gpus=2)
        first, second = executor.submit(wait_for(gate(queue, "first"))), executor.submit(pow, 2, 2)
        wait_until(first.running)
        executor.shutdown(wait=False, cancel_futures=True)
        wait_until(second.cancelled)
        assert first.running()
        queue.open_gate("first")
        assert first.result(60) == gate(queue, "first")


class TestCancel:
    """Cancelling jobs in every state."""

    def test_one_that_waits(self, queue: Programs, executor: stoker.Executor) -> None:
        """It is over at once, and says so in the words of futures."""
        first = executor.submit(wait_for(gate(queue, "before")))
        job = stoker.Executor(gpus=0, after=first).submit(pow, 2, 2)
        assert job.state == "queued"
        assert job.cancel()
        assert (job.done(), job.cancelled(), job.state) == (True, True, "cancelled")
        with pytest.raises(concurrent.futures.CancelledError):
            job.result(60)
        with pytest.raises(concurrent.futures.CancelledError):
            job.exception()
        assert job.cancel()
        queue.open_gate("before")

    def test_one_that_runs(self, queue: Programs, executor: stoker.Executor) -> None:
        """It is stopped, and done when it is gone."""
        job = executor.submit(wait_for(gate(queue, "never")))
        wait_until(job.running)
        assert job.cancel()
        assert job.wait(60)
        assert job.cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            job.result(60)

    def test_one_that_is_over(self, executor: stoker.Executor) -> None:
        """Nothing is left to cancel."""
        job = executor.submit(pow, 2, 2)
        job.result(60)
        assert not job.cancel()
        assert not job.cancelled()


class TestLater:
    """Jobs that outlive those who submitted them."""

    def test_found_by_its_id_after_the_program_was_killed(self, queue: Programs) -> None:
        """Another process gets the result of what a dead one submitted."""
        program = queue.script(f"""
            import os, signal, stoker

            def answer():
                while not os.path.exists({gate(queue, "alone")!r}): pass
                return 42

            print(stoker.Executor(vram="1G").submit(answer).id, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
        out, _ = program.communicate(timeout=60)
        assert program.returncode == -signal.SIGKILL
        job = stoker.job(int(out))
        assert not job.done()
        queue.open_gate("alone")
        assert job.result(60) == 42

    def test_handles_travel(self, executor: stoker.Executor) -> None:
        """A handle can be pickled, and means the same job in another process."""
        first = executor.submit(pow, 2, 5)
        assert pickle.loads(pickle.dumps(first)).result(60) == 32
        assert executor.submit(lambda job: job.result(60) + 1, first).result(60) == 33

    def test_ctrl_c_ends_only_the_waiting(self, queue: Programs) -> None:
        """Neither result() nor the end of the block holds on, and the job goes on."""
        program = queue.script(f"""
            import os, stoker, time

            def wait():
                while not os.path.exists({gate(queue, "interrupted")!r}): time.sleep(0.01)
                return "well"

            with stoker.Executor(vram="1G") as executor:
                job = executor.submit(wait)
                print(job.id, flush=True)
                job.result()
        """)
        job = stoker.job(int(line_from(program.stdout)))
        wait_until(job.running)
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
        assert "KeyboardInterrupt" in err
        assert job.running()
        queue.open_gate("interrupted")
        assert job.result(60) == "well"

    def test_dead_engine_is_started_again(self, queue: Programs, executor: stoker.Executor) -> None:
        """A program that waits starts a dead engine again."""
        job = executor.submit(wait_for(gate(queue, "engine")))
        wait_until(job.running)
        queue.kill_engine()
        queue.open_gate("engine")
        assert job.result(60) == gate(queue, "engine")

    def test_programs_that_fork(self, queue: Programs) -> None:
        """The child of a fork has a watcher of its own."""
        said = queue.run_script("""
            import os, stoker
            executor = stoker.Executor(vram="1G")
            waits = executor.submit(__import__("time").sleep, 60)
            if os.fork() == 0:
                print(executor.submit(pow, 2, 3).result(60), flush=True)
                os._exit(0)
            os.wait()
            print(executor.submit(pow, 2, 4).result(60), waits.cancel())
        """)
        assert said == "8\n16 True\n"

    def test_programs_that_fork_at_any_moment(self, queue: Programs) -> None:
        """What the watcher does with SQLite just then never leaves a lock shut in the child."""
        said = queue.run_script("""
            import os, signal, time, stoker
            from stoker.python.connection import leave_all
            waits = stoker.Executor(vram="1G").submit(time.sleep, 60)

            def fork(pause):
                leave_all()
                stoker.job(waits.id)  # a new watcher
                time.sleep(pause)
                if os.fork() == 0:
                    signal.alarm(50)
                    os._exit(len(stoker.jobs()) == 0)
                return os.wait()[1]

            print([fork(0.0001 * number) for number in range(20)], waits.cancel())
        """)
        assert said == f"{[0] * 20} True\n"

    def test_many_threads(self, executor: stoker.Executor) -> None:
        """Threads share an Executor."""
        results: list[int] = []
        threads = [
            threading.Thread(target=lambda number=number: results.append(executor.submit(pow, 2, number).result(60)))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(results) == [1, 2, 4, 8]


class TestBadInput:
    """What cannot work, and what is said of it."""

    def test_function_that_cannot_be_pickled(self, executor: stoker.Executor) -> None:
        """The variable that it takes along is named, and nothing is submitted."""
        lock = threading.Lock()
        before = len(stoker.jobs(ended=True)) + len(stoker.jobs())
        with pytest.raises(stoker.StokerError, match=r"the variable 'lock' of .*, a lock, cannot be sent"):
            executor.submit(lambda: lock)
        assert len(stoker.jobs(ended=True)) + len(stoker.jobs()) == before

    def test_argument_that_cannot_be_pickled(self, queue: Programs, executor: stoker.Executor) -> None:
        """It is named as the function names it, and leaves no folder."""
        before = sorted(os.listdir(queue.paths.functions)) if queue.paths.functions.exists() else []
        with pytest.raises(stoker.StokerError, match=r"the argument 'second' of .*, a lock,"):
            executor.submit(lambda first, second: None, 1, second=threading.Lock())
        assert sorted(os.listdir(queue.paths.functions)) == before

    def test_result_that_cannot_be_pickled(self, executor: stoker.Executor) -> None:
        """The error names its type and the log."""
        job = executor.submit(threading.Lock)
        with pytest.raises(stoker.JobFailed, match=r"returned a _thread.lock, which cannot be sent back") as raised:
            job.result(60)
        assert str(job.log) in str(raised.value)
        assert (raised.value.job, raised.value.log) == (job.id, str(job.log))

    def test_argument_that_cannot_be_read_in_the_job(self, executor: stoker.Executor) -> None:
        """That the function was never begun is said, and why."""

        class Fragile:
            def __reduce__(self) -> tuple[Any, ...]:
                return int, ("no number",)

        with pytest.raises(stoker.JobFailed, match=r"could not start: ValueError: .*no number"):
            executor.submit(print, Fragile()).result(60)

    def test_result_that_cannot_be_read_here(self, executor: stoker.Executor) -> None:
        """The error says what it was."""

        class Fragile:
            def __reduce__(self) -> tuple[Any, ...]:
                return int, ("no number",)

        with pytest.raises(stoker.JobFailed, match=r"returned a .*Fragile that cannot be read here: ValueError"):
            executor.submit(Fragile).result(60)

    def test_child_that_dies_by_a_signal(self, executor: stoker.Executor) -> None:
        """The error names the signal and the log; a crash of C code left a trace there."""
        job = executor.submit(lambda: os.kill(os.getpid(), signal.SIGSEGV))
        with pytest.raises(
            stoker.JobFailed, match=r"was killed by signal 11 \(SIGSEGV\); its log is .*\.log"
        ) as raised:
            job.result(60)
        assert raised.value.hint == f"stoker logs {job.id}"
        assert "Segmentation fault" in job.stderr()

    def test_child_without_memory(self, executor: stoker.Executor) -> None:
        """KILL is what the kernel sends; MemoryError is an exception like others."""

        def greedy() -> bytes:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))
            return bytes(2**30)

        with pytest.raises(MemoryError):
            executor.submit(greedy).result(60)
        with pytest.raises(stoker.JobFailed, match=r"SIGKILL.*memory"):
            executor.submit(lambda: os.kill(os.getpid(), signal.SIGKILL)).result(60)

    def test_function_that_leaves(self, executor: stoker.Executor) -> None:
        """sys.exit() ends the job, and not the program that asks for its result; os._exit() leaves no result."""
        job, hard = executor.submit(sys.exit, 3), executor.submit(os._exit, 0)
        with pytest.raises(stoker.JobFailed, match="raised SystemExit: 3"):
            job.result(60)
        assert job.exit_code == 3
        with pytest.raises(stoker.JobFailed, match=r"succeeded without a result: it called os\._exit\(\)"):
            hard.result(60)

    def test_function_that_comes_back_twice(self, executor: stoker.Executor) -> None:
        """The result is that of the job's own process, also where a fork leaves the function later."""

        def fork() -> str:
            behind = os.getpid()
            if os.fork():
                return "parent"
            while os.getppid() == behind:
                time.sleep(0.01)
            return "child"

        job = executor.submit(fork)
        assert job.wait(60)
        assert job.result(60) == "parent"

    def test_time_limit(self, queue: Programs) -> None:
        """A job that took too long is no TimeoutError of the waiting."""
        job = stoker.Executor(vram="1G", time="1s", grace="0").submit(wait_for(gate(queue, "too late")))
        with pytest.raises(stoker.JobFailed, match="reached its time limit of 00:01"):
            job.result(60)

    def test_deleted_folder(self, queue: Programs, executor: stoker.Executor) -> None:
        """Without its folder a job that waits cannot begin, and of one that is over nothing can be had."""
        over = executor.submit(pow, 2, 2)
        waits = stoker.Executor(gpus=0, after=executor.submit(wait_for(gate(queue, "folder")))).submit(pow, 2, 2)
        wait_until(over.done)
        for job in (over, waits):
            shutil.rmtree(queue.paths.function(job.id))
        queue.open_gate("folder")
        with pytest.raises(stoker.JobFailed, match="has no result: its folder was removed"):
            over.result(60)
        with pytest.raises(stoker.JobFailed, match="has no result: its folder was removed"):
            waits.result(60)
        assert "calls" in waits.stderr()

    def test_damaged_result(self, queue: Programs, executor: stoker.Executor) -> None:
        """The file is named."""
        job = executor.submit(pow, 2, 2)
        wait_until(job.done)
        (queue.paths.function(job.id) / "0.result").write_bytes(b"nonsense")
        with pytest.raises(stoker.JobFailed, match=r"has a result that cannot be read .*0.result"):
            job.result(60)

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"gpu": 1}, "unknown key 'gpu'"),
            ({"max_workers": 2, "cluster": "big"}, "max_workers does not work on a cluster"),
            ({"vram": "much"}, "much"),
            ({"gpus": "two"}, "gpus"),
            ({"array": "0-3"}, "takes no array option"),
            ({"gpus": -1}, "must not be negative"),
        ],
    )
    def test_options_are_checked_at_once(self, queue: Programs, options: dict[str, Any], told: str) -> None:
        """As on the command line, before any function is there."""
        with pytest.raises(UsageError, match=told):
            stoker.Executor(**options)

    def test_needs_that_can_never_be_met(self, queue: Programs) -> None:
        """They are refused at submit, and nothing stays behind."""
        with pytest.raises(stoker.StokerError, match=r"3 GPUs|needs 3"):
            stoker.Executor(gpus=3).submit(pow, 2, 2)
        assert not [name for name in os.listdir(queue.paths.functions) if name.startswith(".")]


def functions_of(queue: Programs) -> list[Path]:
    """The processes that run functions of a queue."""
    mark = str(queue.paths.functions).encode()
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in content_of(path)]


def content_of(path: Path) -> bytes:
    """What is in a file of /proc; nothing where its process is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_full_disk(tmp_path: Path) -> None:
    """A function that finds no room is refused; a result that finds none fails with words on that, even without log."""
    with small_disk(tmp_path / "disk", "size=12m") as disk, programs_in(disk) as queue:
        executor = stoker.Executor(gpus=0, freeze=False)  # the code of this work tree would fill the disk
        assert executor.submit(pow, 2, 2).result(60) == 4
        with pytest.raises(stoker.StokerError, match=r"cannot be written to .*: No space left"):
            executor.submit(len, os.urandom(20_000_000))
        job = executor.submit(lambda: b"x" * 20_000_000)
        with pytest.raises(stoker.JobFailed, match="could not write its result; is the disk full"):
            job.result(60)
        # The result is larger than the disk: whatever the engine may free after fill() is not enough for it.
        waits = executor.submit(wait_for(str(tmp_path / "open"), 1_000_000))
        wait_until(waits.running)
        ballast = fill(disk)
        (tmp_path / "open").touch()
        wait_until(lambda: not functions_of(queue))
        ballast.unlink()
        with pytest.raises(stoker.JobFailed, match="could not write its result; is the disk full"):
            waits.result(60)
