"""joblib's loops through the queue, with the real joblib."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from joblib import Parallel, delayed, parallel_config

from stoker.core.errors import UsageError
from stoker.core.job import state_word
from stoker.python import joblib_backend
from stoker.python.calls import NotPicklable
from support.python_program import Programs, programs_in

PAGE = (Path(__file__).parents[2] / "docs/joblib.md").read_text()


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """A queue, through which all loops go."""
    joblib_backend.register()
    with programs_in(tmp_path_factory.mktemp("joblib")) as made, parallel_config(backend="stoker", vram="1G"):
        yield made


def last_job(queue: Programs) -> int:
    """The newest job."""
    with queue.open_store() as store:
        return store.last_job() or 0


def test_results_are_in_order(queue: Programs) -> None:
    """Each call is a job with a GPU."""

    def work(number: int, *, factor: int) -> tuple[int, bool]:
        return number * factor, bool(os.environ["CUDA_VISIBLE_DEVICES"])

    before = last_job(queue)
    assert Parallel()(delayed(work)(number, factor=2) for number in range(3)) == [(0, True), (2, True), (4, True)]
    assert [queue.job(before + number).name for number in (1, 2, 3)] == ["work"] * 3


def test_n_jobs_bounds_what_is_in_the_queue(queue: Programs) -> None:
    """Also where more GPUs are free; the next call follows when one is over, a batch of calls is one job."""

    def work(folder: str, number: int) -> int:
        path = os.path.join(folder, str(number))
        open(path, "w").close()
        time.sleep(0.1)
        at_once = len(os.listdir(folder))
        os.unlink(path)
        return at_once

    folder = queue.cwd / "at_once"
    folder.mkdir()
    before = last_job(queue)
    found = Parallel(n_jobs=2, batch_size=2)(delayed(work)(str(folder), number) for number in range(8))
    assert len(found) == 8
    assert max(found) <= 2
    assert last_job(queue) - before == 4


def test_failure_is_raised_and_ends_the_rest(queue: Programs) -> None:
    """As with joblib's own backends."""

    def work(number: int) -> None:
        if number == 0:
            raise ValueError("nought")
        time.sleep(60)

    before = last_job(queue)
    with pytest.raises(ValueError, match="nought"):
        Parallel(n_jobs=2)(delayed(work)(number) for number in range(2))
    queue.wait_over(before + 2)
    assert [state_word(queue.job(before + number)) for number in (1, 2)] == ["failed", "cancelled"]


def test_what_cannot_be_sent_is_told(queue: Programs) -> None:
    """A call that was never submitted is not waited for."""
    with Path(os.devnull).open("wb") as file, pytest.raises(NotPicklable, match="BufferedWriter"):
        Parallel(n_jobs=2)(delayed(print)(each) for each in (file, 1))


def test_options_have_one_place(queue: Programs) -> None:
    """joblib has an option `prefer` of its own, so options of jobs are told apart from those of loops."""
    with pytest.raises(UsageError, match="takes no job options"):
        Parallel(n_jobs=2, gpus=2)(delayed(abs)(number) for number in range(2))


def test_example_of_the_page(queue: Programs) -> None:
    """It prints what is shown there."""
    program, output = (text for _, text in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert queue.run_script(program) == output
