"""The Python side in IPython and in a notebook: completion, signatures, tables, progress and tracebacks."""

from __future__ import annotations

import inspect
import io
import textwrap
from collections.abc import Iterator

import nbclient
import nbformat
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import stoker
from stoker.core.errors import UsageError
from stoker.python.keywords import Keywords
from stoker.python.tables import Rows
from support.python_program import Programs, programs_in


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """One queue for all tests here; each looks only at its own jobs."""
    with programs_in(tmp_path_factory.mktemp("notebook")) as made:
        yield made


class TestSignatures:
    """What a notebook shows of functions."""

    @pytest.mark.parametrize("function", [stoker.Executor, stoker.submit, stoker.submit_array])
    def test_every_job_option_is_a_keyword(self, function: object) -> None:
        """Signature and help name them all."""
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
        assert Keywords.__annotations__.keys() - {"array"} <= parameters.keys()
        text = inspect.getdoc(function.__init__ if function is stoker.Executor else function)
        assert text is not None
        assert "retry_on: " in text
        assert "--" not in text.partition("Job options")[2]

    @pytest.mark.parametrize("with_jedi", [True, False])
    def test_ipython_completes_keywords(self, with_jedi: bool) -> None:
        """TAB after a part of a keyword."""
        shell = InteractiveShell.instance()
        shell.Completer.use_jedi = with_jedi
        shell.user_ns["stoker"] = stoker
        typed = "stoker.Executor(gpu_t"
        with provisionalcompleter():
            found = [one.text for one in shell.Completer.completions(typed, len(typed))]
        assert "gpu_type=" in found

    def test_only_the_public_names_are_listed(self) -> None:
        """Modules that were imported on the way are not."""
        assert set(dir(stoker)) == set(stoker.__all__)


class TestErrors:
    """Errors name keywords."""

    @pytest.mark.parametrize(
        ("keywords", "expected"),
        [
            ({"vram": "6"}, "vram=6 has no unit"),
            ({"retry_on": "never"}, "retry_on: 'never' is neither"),
            ({"gpus": -1}, "gpus must not be negative"),
            ({"mps": "yes"}, "mps is for jobs that share a GPU"),
        ],
    )
    def test_keywords_in_messages(self, queue: Programs, keywords: Keywords, expected: str) -> None:
        """No option of the command line is mentioned."""
        with pytest.raises(UsageError) as raised:
            stoker.Executor(**keywords)
        assert expected in raised.value.message
        assert "--" not in raised.value.message + raised.value.hint


class TestTables:
    """Rows of the queue, of its history and of the GPUs."""

    def test_pandas_takes_the_rows(self, queue: Programs) -> None:
        """A column for each field, with times as times."""
        import pandas  # half a second of each worker that collects tests

        job = stoker.submit("exit 3", gpus=0, name="<b>bold</b>")
        job.wait(60)
        frame = pandas.DataFrame(stoker.history())
        row = frame[frame.id == job.id].iloc[0]
        assert (row.state, row.exit_code, row["name"]) == ("failed", 3, "<b>bold</b>")
        assert row.ended.tzinfo is not None
        assert list(pandas.DataFrame(stoker.gpus()).memory_bytes) == [24 * 2**30] * 2

    def test_states_select(self, queue: Programs) -> None:
        """History takes the options of the command."""
        for command in ("true", "false"):
            stoker.submit(command, gpus=0, name="selected").wait(60)
        found = [row["state"] for row in stoker.history("1h", ["failed"]) if row["name"] == "selected"]
        assert found == ["failed"]

    def test_waiting_jobs_say_why(self, queue: Programs) -> None:
        """As on the screen."""
        job = stoker.submit("true", gpus=0, begin="now+1hour", name="later")
        (row,) = (row for row in stoker.status() if row["id"] == job.id)
        assert row["why"]
        assert "later" in repr(stoker.status())
        job.cancel()

    def test_text_of_jobs_is_never_html(self) -> None:
        """Names are shown as they are."""
        rows = Rows([], ("name",))
        rows.append({"name": "<script>alert(1)</script>"})
        assert "<script>" not in rows._repr_html_()
        assert "&lt;script&gt;" in rows._repr_html_()


class TestJobs:
    """Output and representation of a job."""

    def test_tail_shows_the_last_state_of_a_bar(self, queue: Programs) -> None:
        """Text that a carriage return overwrote is left out."""
        job = stoker.submit("printf 'one\\ntwo\\n10%%\\r50%%\\r100%%\\nend\\n'", gpus=0)
        job.wait(60)
        assert job.tail(2) == "100%\nend"
        assert "done" in job._repr_html_()

    def test_follow_prints_all_attempts(self, queue: Programs, capsys: pytest.CaptureFixture[str]) -> None:
        """The output of a retry comes after that of the first attempt."""
        job = stoker.submit("echo try $STOKER_ATTEMPT; test $STOKER_ATTEMPT = 2", gpus=0, retries=1)
        job.follow()
        assert capsys.readouterr().out.endswith("try 2\n")
        assert job.done()

    def test_executor_is_described(self, queue: Programs) -> None:
        """Its options and how many jobs are open."""
        executor = stoker.Executor(gpus=0, name="described")
        assert repr(executor) == "<stoker.Executor(gpus=0, name='described'): 0 open jobs>"
        executor.shutdown()
        assert "shut down" in repr(executor)

    def test_constants_of_an_array(self, queue: Programs) -> None:
        """All calls get them."""
        with stoker.Executor(gpus=0) as executor:
            jobs = executor.map_array(sorted, [[1, 2], [3, 4]], reverse=True)
            bar = list(stoker.as_completed(jobs, 60, progress=True))
        assert {*bar} == {*jobs}
        assert [job.result(60) for job in jobs] == [[2, 1], [4, 3]]


def test_notebook(queue: Programs) -> None:
    """Cells run as they do on a desk: functions of cells travel, tables are HTML, tracebacks quote the cell."""
    cells = """
        import stoker
        def scale(rate, factor):
            return rate * factor
        def broken(number):
            return 1 / number  # the line of the cell
        with stoker.Executor(gpus=0) as executor:
            jobs = executor.map_array(scale, [1, 2], factor=10)
            print([job.result(60) for job in stoker.as_completed(jobs, 60, progress=True)])
            wrong = executor.submit(broken, 0)
        ---
        stoker.history()
        ---
        print(wrong.exception(60).__cause__)
        wrong
    """
    texts = [textwrap.dedent(cell) for cell in textwrap.dedent(cells).split("---\n")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    first, table, last = ([*cell.outputs] for cell in notebook.cells)
    printed = "".join(output.text for output in first if output.output_type == "stream" and output.name == "stdout")
    assert sorted(printed.strip("[]\n").split(", ")) == ["10", "20"]
    assert "<table>" in table[0].data["text/html"]
    assert "return 1 / number  # the line of the cell" in last[0].text
    assert "failed" in last[1].data["text/html"]
    assert io.StringIO(last[1].data["text/plain"]).readline().startswith("<stoker.Job")
