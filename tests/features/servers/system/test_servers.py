"""Three servers with a real sshd: their queues are used from one machine, and jobs get there once."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.servers.machines import NAMES, Lab, fresh_lab
from support.reaper import is_alive
from support.wait import PATIENCE_SECONDS, wait_until

PROJECT = {
    "train.py": "import model, sys\nprint('model', model.VERSION, *sys.argv[1:])\nopen('result', 'a').write('x')\n",
    "model.py": "VERSION = 1\n",
    "job.sh": "#!/bin/sh\n#STOKER --name scripted\ncat conf.yaml; python3 train.py script $1\n",
    "conf.yaml": "conf 1\n",
    ".gitignore": "data\nresult\n",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with fresh_lab(tmp_path_factory.mktemp("lab")) as lab:
        lab.add(*NAMES)
        for home in lab.homes.values():
            assert lab.on(home.name, "mkdir work").code == 0
        yield lab


@pytest.fixture
def project(lab: Lab, request: pytest.FixtureRequest) -> str:
    """A git work tree of the user, which no server has; its name."""
    name = re.sub(r"\W", "_", request.node.name)
    folder = lab.stoker.cwd / name
    folder.mkdir()
    for file, text in PROJECT.items():
        (folder / file).write_text(text)
    (folder / "job.sh").chmod(0o755)
    (folder / "data").mkdir()
    (folder / "data/set.bin").write_text("set")
    assert lab(f"cd {name} && git init -q . && git add -A").code == 0
    return name


def submitted(lab: Lab, line: str, cwd: str = ".") -> str:
    """The id of a job that a line submits."""
    done = lab(f"cd {cwd} && stoker submit --parsable {line}")
    assert done.code == 0, done
    return done.out.strip()


def test_one_list_of_servers(lab: Lab) -> None:
    """Servers are listed and checked; a name twice, and hosts that cannot be used, are refused with what to type."""
    assert [line.split()[0] for line in lab("stoker servers list").out.splitlines()] == list(NAMES)
    checked = lab("stoker servers check --json")
    assert (checked.code, json.loads(checked.out)["problems"]) == (0, 0)
    ssh = f"ssh -F {lab.config}"
    for name, said in {
        f"two --ssh '{ssh} gpu2'": "two is the same queue as gpu2",
        f"closed --ssh '{ssh} closed'": "make it work without: ssh-copy-id",
        f"away --ssh '{ssh} away'": "ssh does not reach it",
        "none --local --before 'PATH=/usr/bin HOME=/'": "there is no stoker on none",
        "nothing --ssh 'missing-ssh host'": "missing-ssh cannot be run",
        "any": "means whichever server",
        f"both --local --ssh '{ssh} gpu2'": "leave one of them out",
    }.items():
        refused = lab(f"stoker servers add {name}")
        assert (refused.code > 0, said in refused.err) == (True, True), refused
    assert [line.split()[0] for line in lab("stoker servers list").out.splitlines()] == list(NAMES)


def test_a_changed_host_key(lab: Lab, tmp_path: Path) -> None:
    """It is never accepted silently, and the sentence names the command."""
    known = tmp_path / "known"
    other = (lab.directory / "key.pub").read_text().split()[:2]
    known.write_text(f"[127.0.0.1]:{lab.ports['gpu1']} {' '.join(other)}\n")
    strict = f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes"
    refused = lab(f"stoker servers add changed --ssh 'ssh -F {lab.config} {strict} gpu1'")
    assert (refused.code, "its host key has changed" in refused.err, "ssh-keygen -R" in refused.err) == (3, True, True)
    known.write_text("")
    unknown = lab(f"stoker servers add changed --ssh 'ssh -F {lab.config} {strict} gpu1'")
    assert (unknown.code, "accept it once: ssh" in unknown.err) == (3, True)


def test_commands_there(lab: Lab) -> None:
    """Commands with ids such as gpu2:3 do the same as on that server, with its exit codes."""
    job = submitted(lab, "-S gpu2 -- sh -c 'echo out; echo err >&2; exit 7'")
    followed = lab(f"stoker logs -f {job}")
    assert (followed.code, sorted(followed.out.split())) == (7, ["err", "out"])
    assert lab(f"stoker wait {job}").code == 7
    assert json.loads(lab(f"stoker status {job} --json").out)["jobs"][0]["state"] == "failed"
    waiting = submitted(lab, "-S gpu2 --hold -- true")
    assert lab(f"stoker edit {waiting} --priority 5").code == 0
    assert lab(f"stoker resume {waiting}").code == 0
    assert lab(f"stoker wait {waiting}").code == 0
    assert lab(f"stoker retry {job}").code == 0
    assert lab(f"stoker wait {job}").code == 7
    assert lab("stoker wait gpu2:999").code == 4
    assert "sh -c" in lab("stoker history -S gpu2").out
    sleeping = submitted(lab, "-S gpu2 -G 0 -- sleep 1000")
    assert lab(f"stoker cancel {sleeping}").code == 0
    assert lab(f"stoker wait {sleeping}").code != 0
    assert lab("stoker status -S gpu22").err.splitlines()[0] == "stoker: there is no server 'gpu22'"


def test_text_of_a_login_shell(lab: Lab) -> None:
    """What a login shell prints reaches neither JSON nor a pipe."""
    noisy = f"stoker servers add noisy --ssh 'ssh -F {lab.config} gpu3' --before 'echo Welcome; echo {{}}'"
    twice = lab(noisy)
    assert "same queue as gpu3" in twice.err, "it was understood in spite of the text"
    assert lab("stoker servers remove gpu3").code == 0
    assert lab(noisy).code == 0
    assert json.loads(lab("stoker status -S noisy --json").out)["host"]
    assert submitted(lab, "-S noisy -G 0 -- true").startswith("noisy:")
    assert lab("stoker servers remove noisy").code == 0
    lab.add("gpu3")


def test_code_travels(lab: Lab, project: str) -> None:
    """A job runs the code of the submit, in a directory like that of the user; each file travels once."""
    first = submitted(lab, "-S gpu3 --hold -- python3 train.py a", project)
    (lab.stoker.cwd / project / "model.py").write_text("VERSION = 2\n")
    second = submitted(lab, "-S gpu3 -- python3 train.py b", project)
    assert lab(f"stoker resume {first}").code == 0
    assert (lab(f"stoker logs -f {first}").out, lab(f"stoker logs -f {second}").out) == ("model 1 a\n", "model 2 b\n")
    there = lab.homes["gpu3"] / "work" / project
    assert lab.on("gpu3", f"cat {there}/result").out == "xx", "results are in the directory of the job"
    third = submitted(lab, "-S gpu3 job.sh c", project)
    assert lab(f"stoker logs -f {third}").out == "conf 1\nmodel 2 script c\n"
    assert json.loads(lab(f"stoker status {third} --json").out)["jobs"][0]["name"] == "scripted"


def test_a_directory_of_the_user_there(lab: Lab, project: str) -> None:
    """Its files stay as they are; a job runs with the code that came, and its data."""
    there = lab.homes["gpu3"] / "work" / project
    made = lab.on("gpu3", f"mkdir -p {there}/data; echo mine > {there}/conf.yaml; echo set > {there}/data/set.bin")
    assert made.code == 0
    job = submitted(lab, "-S gpu3 -- python3 train.py data/set.bin", project)
    assert lab(f"stoker logs -f {job}").out == "model 1 data/set.bin\n"
    assert lab.on("gpu3", f"cat {there}/conf.yaml; ls {there}").out.split() == ["mine", "conf.yaml", "data", "result"]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("python3 train.py data/set.bin", "data/set.bin"),
        ("python3 train.py --data data", "data"),
        ("python3 train.py --data=data/set.bin", "data/set.bin"),
        ("'python3 train.py < data/set.bin'", "data/set.bin"),
    ],
)
def test_data_that_is_not_there(lab: Lab, project: str, words: str, missing: str) -> None:
    """It is named, and nothing is submitted."""
    refused = lab(f"cd {project} && stoker submit -S gpu1 -- {words}")
    assert (refused.code, f"there is no {missing} (in " in refused.err) == (2, True), refused
    assert not (lab.homes["gpu1"] / "work" / project).exists()


def test_a_directory_that_is_not_there(lab: Lab, tmp_path: Path) -> None:
    """Jobs whose code does not travel need theirs."""
    refused = lab(f"cd {tmp_path} && stoker submit -S gpu1 -- sleep 1")
    assert (refused.code, "there is no directory" in refused.err) == (2, True)


def test_fetched_files(lab: Lab, project: str) -> None:
    """Logs, files and directories of a job are copied whole; what is newer here stays, and no file gets out."""
    work = "mkdir -p runs/a; seq 100000 > runs/a/numbers; echo there > note; ln -s /etc runs/link; echo said"
    job = submitted(lab, f"-S gpu2 --freeze -- sh -c {shlex.quote(work)}", project)
    assert lab(f"stoker wait {job}").code == 0
    cd = f"cd {project} &&"
    logs = lab(f"{cd} stoker fetch {job} -o logs")
    assert logs.code == 0, logs
    [log] = (lab.stoker.cwd / project / "logs").iterdir()
    assert log.read_text() == "said\n"
    assert lab(f"{cd} stoker fetch {job} 'runs/*' note").code == 0
    here = lab.stoker.cwd / project
    assert (here / "runs/a/numbers").read_text().split() == [str(number) for number in range(1, 100_001)]
    os.utime(here / "note", (2**31, 2**31))
    (here / "runs/a/numbers").unlink()
    again = lab(f"{cd} stoker fetch {job} runs note")
    assert (again.code, "note stays: it is newer here" in again.err) == (0, True)
    assert (here / "runs/a/numbers").exists()
    assert lab(f"{cd} stoker fetch {job} missing").code == 4
    assert "write it as gpu2:12" in lab("stoker fetch 12").err
    assert lab("stoker fetch gpu2:999").code == 4
    assert not list(here.rglob(".new-*"))


def test_any_server(lab: Lab) -> None:
    """Jobs go where they start first, and then where there is the least to do; nowhere if none can run them."""
    ids = [submitted(lab, "-S any -G 2 -- sleep 1000") for _ in range(4)]
    assert sorted(job.partition(":")[0] for job in ids[:3]) == list(NAMES)
    assert lab("stoker submit -S any -G 3 -- true").code == 5
    repeated = [lab("stoker submit -S any --key mine --parsable -- sleep 1000") for _ in range(3)]
    assert len({done.out for done in repeated}) == 1
    for name in NAMES:
        lab(f"stoker cancel -S {name} all")


def test_all_servers_in_one_view(lab: Lab) -> None:
    """Jobs have ids that name them here; a server that is away has its last known state."""
    job = submitted(lab, "-S gpu1 -G 0 --hold -- true")
    shown = json.loads(lab("stoker status --servers --json").out)
    assert [server["name"] for server in shown["servers"]] == list(NAMES)
    assert all(server["reachable"] for server in shown["servers"])
    assert job in lab("stoker status --servers --table").out
    lab.write_config(ProxyCommand="false")
    try:
        for name in NAMES:
            command = ["ssh", "-S", connection(lab, name), "-O", "exit", "x"]
            subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE_SECONDS)
        away = lab("stoker status --servers --table")
        assert (away.code, job in away.out, "as of" in away.out) == (3, True, True), away
        assert lab(f"stoker cancel {job}").code == 3
    finally:
        lab.write_config()
    assert lab(f"stoker cancel {job}").code == 0


def connection(lab: Lab, name: str) -> str:
    """The socket of the shared connection to a server."""
    import hashlib

    words = "\0".join(("ssh", "-F", str(lab.config), name))
    return f"{lab.directory}/run/stoker-ssh-{os.getuid()}/{hashlib.sha256(words.encode()).hexdigest()[:12]}"


def test_nothing_stays_behind_a_command(lab: Lab) -> None:
    """A wait that is killed here ends there, too."""
    job = submitted(lab, "-S gpu1 -G 0 -- sleep 1000")
    waiting = lab.stoker.start("wait", job)
    try:
        wait_until(lambda: waiters(lab))
        [there] = waiters(lab)
        waiting.send_signal(signal.SIGKILL)
        waiting.wait(PATIENCE_SECONDS)
        wait_until(lambda: not is_alive(there))
    finally:
        assert lab(f"stoker cancel {job}").code == 0


def waiters(lab: Lab) -> list[int]:
    """Processes on the servers that wait for a job."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                owner = os.stat(f"/proc/{name}").st_uid
            except OSError:
                continue
            if owner == lab.user.uid and b"wait" in words and any(word.endswith(b"/stoker") for word in words):
                found.append(int(name))
    return found
