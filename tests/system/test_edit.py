"""`stoker edit`: jobs that wait are changed, by options or in an editor."""

from __future__ import annotations

import time

import pytest

from stoker.core.spec import Dependency, Resources
from support.background import Background
from support.cli import until
from support.wait import wait_until

WHOLE = Resources(gpus=2)
HELD = "held by you"


def test_options(background: Background) -> None:
    """Only what is typed is changed, and each change is told."""
    (job,) = background.submit("true", held=HELD, names=["old"], retries=3)
    outcome = background("edit", str(job), "--priority", "5", "--time", "2h", "-J", "new", "--env", "SEED=1")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{job}: name old → new, priority 0 → 5, time none → 7200s, env none → SEED=1\n"
    changed = background.job(job)
    assert (changed.name, changed.spec.priority, changed.spec.limit, changed.spec.retries) == ("new", 5, 7200.0, 3)
    assert changed.spec.extra_env == (("SEED", "1"),)
    again = background("edit", str(job), "--priority", "5")
    assert again.out == f"{job}: no change\n"


def test_the_default(background: Background) -> None:
    """An empty value takes a wish back."""
    (job,) = background.submit("true", held=HELD, limit=60.0, group="vision")
    assert background("edit", str(job), "--time", "", "--group", "").code == 0
    assert (background.job(job).spec.limit, background.job(job).spec.group) == (None, "")


def test_memory(background: Background) -> None:
    """From a size to what is learnt, and to the whole card."""
    (job,) = background.submit("true", held=HELD, resources=Resources(memory=6 * 2**30))
    assert background("edit", str(job), "--vram", "auto").out == f"{job}: vram 6G → auto\n"
    assert background.job(job).spec.resources == Resources(auto=True)
    assert background("edit", str(job), EDITOR="sed -i s/auto/12G/").out == f"{job}: vram auto → 12G\n"
    assert background("edit", str(job), "--vram", "all").out == f"{job}: vram 12G → all\n"
    assert background.job(job).spec.resources == Resources()


def test_the_environment_is_not_meant(background: Background) -> None:
    """What STOKER_... sets for every submit does not change this job."""
    (job,) = background.submit("true", held=HELD)
    assert background("edit", str(job), "--priority", "5", STOKER_GPUS="2").code == 0
    assert background.job(job).spec.resources.gpus == 1


def test_it_matters(background: Background) -> None:
    """A job with a higher priority starts first, in a directory and with files as they are named now."""
    busy, first, second = background.submit(
        until("gate"), "echo first >> order", "echo second >> order; pwd; pwd >&2", resources=WHOLE
    )
    background.wait_word("running", busy)
    (background.cwd / "there").mkdir()
    changed = background("edit", str(second), "--priority", "1", "-D", "there", "-e", "errors")
    assert changed.code == 0, changed.err
    background.open_gate("gate")
    background.wait_over(first, second)
    assert background.lines("there/order") == ["second"]
    assert background.lines("there/errors") == [f"{background.cwd}/there"]
    assert background.log(second) == f"{background.cwd}/there\n"


def test_what_is_over(background: Background) -> None:
    """An ended job cannot be changed, and the message says what to type instead."""
    (over,) = background.submit("true")
    background.wait_over(over)
    outcome = background("edit", str(over), "--priority", "5")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"stoker retry {over}" in outcome.err


def test_what_runs(background: Background) -> None:
    """Of a running job, name and limits can be changed; a limit that has passed is refused, as are its GPUs."""
    (running,) = background.submit(until("gate"), limit=3600.0)
    background.wait_word("running", running)
    outcome = background("edit", str(running), "--time", "2h", "-J", "longer", "--retries", "2", "--priority", "5")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{running}: name none → longer, priority 0 → 5, time 3600s → 7200s, retries 0 → 2\n"
    changed = background.job(running)
    assert (changed.name, changed.spec.limit, changed.spec.retries) == ("longer", 7200.0, 2)
    refused = background("edit", str(running), "--gpus", "2")
    assert (refused.code, "--gpus cannot be changed while it runs" in refused.err) == (2, True)
    passed = background("edit", str(running), "--time", "0.01s")
    assert (passed.code, f"stoker cancel {running}" in passed.err) == (2, True)
    assert background.job(running) == changed


def test_a_new_limit_ends_it(background: Background) -> None:
    """The worker of a running job keeps the new limit, also after the engine that sent it was killed."""
    (running,) = background.submit(until("gate"), limit=3600.0)
    background.wait_word("running", running)
    in_the_editor = background("edit", str(running), EDITOR="sed -i 's/3600s/7200s/'")
    assert in_the_editor.out == f"{running}: time 3600s → 7200s\n"
    background.limit(running, time.time() - background.job(running).submitted + 2.0)
    wait_until(lambda: background.job(running).spec.limit != 7200.0)
    background.kill_engine()
    background.start_engine()
    background.wait_over(running)
    assert background.word(running) == "timeout"


def test_dependencies(background: Background) -> None:
    """A job can be put behind an earlier one, never behind a later one or itself."""
    first, second = background.submit("true", "true", held=HELD)
    assert background("edit", str(second), "--after", f"any:{first}").code == 0
    assert background.job(second).spec.after == (Dependency(first, "any"),)
    for wrong in (str(second), "all"):
        outcome = background("edit", str(first), "--after", wrong)
        assert outcome.code == 2
    assert background.job(first).spec.after == ()


def test_arrays(background: Background) -> None:
    """All tasks, or some of them, are changed together."""
    ids = background.submit("true", "true", "true", array=True, held=HELD)
    said = background("edit", str(ids[0]), "--priority", "2").out
    assert said == f"3 tasks {ids[0]}.[0-2]: priority 0 → 2\n"
    assert background("edit", f"{ids[0]}.1-2", "--priority", "3").code == 0
    assert [background.job(job_id).spec.priority for job_id in ids] == [2, 3, 3]
    assert background("edit", str(ids[0]), "--array", "0-9").code == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--time", "soon"], 2),
        (["--on", "7"], 5),
        (["-G", "3"], 5),
        (["--vram", "30G"], 5),
        (["--after", "99"], 4),
        (["-o", "-"], 2),
        (["--priority", "high"], 2),
    ],
)
def test_nonsense(background: Background, arguments: list[str], code: int) -> None:
    """What cannot be, or never be met here, is refused, and the job stays as it was."""
    (job,) = background.submit("true", held=HELD)
    before = background.job(job)
    outcome = background("edit", str(job), *arguments)
    assert outcome.code == code, outcome.err
    assert background.job(job) == before


def test_the_help_offers_what_can_be_changed(background: Background) -> None:
    """There is no option in it that is always refused."""
    assert "--array" not in background("edit", "--help").out
    assert "--array" in background("submit", "--help").out


def test_an_editor(background: Background) -> None:
    """Without options an editor shows what can be changed, and what is changed there counts."""
    (job,) = background.submit("true", held=HELD, names=['a "quoted"\nname'], extra_env=(("A", "1"), ("B", "\\2")))
    _editor(background, r's/^priority = 0/priority = 7/; s/^time = ""/time = "90s"/; /^"A"/d')
    outcome = background("edit", str(job), EDITOR="./editor --wait")
    assert (outcome.code, outcome.err) == (0, "")
    spec = background.job(job).spec
    assert (spec.priority, spec.limit, spec.extra_env) == (7, 90.0, (("B", "\\2"),))
    assert background.job(job).name == 'a "quoted"\nname'


def test_secrets(background: Background) -> None:
    """A value whose name looks like a secret is shown nowhere, and stays when it is not changed."""
    (job,) = background.submit("true", held=HELD, extra_env=(("API_TOKEN", "hush"),))
    _editor(background, r"s/^priority = 0/priority = 7/; w seen")
    assert background("edit", str(job), EDITOR="./editor").code == 0
    assert "hush" not in "".join(background.lines("seen"))
    assert background.job(job).spec.extra_env == (("API_TOKEN", "hush"),)
    outcome = background("edit", str(job), "--env", "API_TOKEN=louder")
    assert outcome.out == f"{job}: env API_TOKEN=******** → API_TOKEN=********\n"
    assert background.job(job).spec.extra_env == (("API_TOKEN", "louder"),)


def test_an_editor_that_changes_nothing(background: Background) -> None:
    """Leaving the editor without a change changes nothing, and VISUAL goes before EDITOR."""
    (job,) = background.submit("true", held=HELD, begin=2e9, after=(), tags=(("k", "v"),))
    before = background.job(job)
    outcome = background("edit", str(job), EDITOR="false", VISUAL="true")
    assert outcome.code == 0
    assert "nothing was changed" in outcome.err
    assert background.job(job) == before


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("s/^priority = 0/priority = high/", "not valid TOML"),
        ('s/^priority = 0/priority = "high"/', "is not a number"),
        ("s/^priority/priorty/", "did you mean priority?"),
        ('s/^time = ""/time = "soon"/', "soon"),
        ("s/^gpus = 1/gpus = 9/", "needs 9 GPUs"),
    ],
)
def test_nonsense_in_an_editor(background: Background, script: str, words: str) -> None:
    """Nonsense is refused, nothing is changed, and the text is kept."""
    (job,) = background.submit("true", held=HELD)
    before = background.job(job)
    _editor(background, script)
    outcome = background("edit", str(job), EDITOR="./editor", TMPDIR=str(background.home))
    assert outcome.code in (2, 5)
    assert words in outcome.err
    assert "nothing was changed" in outcome.err
    assert "your text is in" in outcome.err
    assert background.job(job) == before


def test_an_editor_that_fails(background: Background) -> None:
    """An editor that fails or is not there changes nothing."""
    (job,) = background.submit("true", held=HELD)
    for editor in ("false", "/nowhere/editor"):
        outcome = background("edit", str(job), EDITOR=editor, TMPDIR=str(background.home))
        assert outcome.code == 2
        assert "the editor" in outcome.err
    assert list(background.home.glob("*.toml")) == []


def _editor(background: Background, script: str) -> None:
    path = background.write("editor", "#!/bin/sh", "for file; do :; done", f"exec sed -i '{script}' \"$file\"")
    path.chmod(0o755)
