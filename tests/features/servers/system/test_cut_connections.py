"""Connections break and processes are killed at every step of a submit: each job gets to one queue, once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.servers.machines import NAMES, Lab, fresh_lab
from support.wait import PATIENCE_SECONDS, wait_until

CUTS = (0, 3000, 4500, 5500, 6500, 8000)
"""Bytes: in the greeting, the exchange of keys, the login, the question, the code, the answer."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with fresh_lab(tmp_path_factory.mktemp("lab")) as lab:
        lab.add(*NAMES)
        project = lab.stoker.cwd / "project"
        project.mkdir()
        (project / "train.py").write_text("print('trained')\n" + "# a comment that makes the file longer\n" * 100)
        assert lab("cd project && git init -q . && git add -A").code == 0
        yield lab


def jobs_there(lab: Lab) -> Counter[str]:
    """The names of all jobs on all servers."""
    found: Counter[str] = Counter()
    for name in NAMES:
        status = lab.on(name, "stoker status -a --json")
        assert status.code == 0, status
        found.update(job["name"] for job in json.loads(status.out)["jobs"])
    return found


def submit_line(key: str, server: str) -> str:
    return f"submit -S {server} --hold --key {key} -J {key} -- python3 train.py {key}"


def test_cut_at_every_step(lab: Lab) -> None:
    """One submit sends again by itself until it is answered, on the server that it chose first."""
    keys = []
    for number in CUTS:
        lab.cut(number, number, number)
        keys.append(f"cut-{number}")
        with open(lab.stoker.cwd / "project/train.py", "a") as file:
            file.write(f"# {keys[-1]}\n")  # so that code travels each time
        done = lab(f"cd project && stoker {submit_line(keys[-1], 'any')}")
        while done.code == 3:  # none could be reached: nothing was sent
            done = lab(f"cd project && stoker {submit_line(keys[-1], 'any')}")
        assert done.code == 0, done
    lab.cut()
    assert jobs_there(lab) >= Counter(keys)
    assert max(jobs_there(lab).values()) == 1


@pytest.mark.parametrize("victim", ["there", "connection", "client"])
def test_kills(lab: Lab, victim: str) -> None:
    """The process that answers, the connection or the command itself is killed while the server works."""
    lab.cut()
    key = f"killed-{victim}"
    process = lab.stoker.start(*submit_line(key, "any").split(), cwd=lab.stoker.cwd / "project")
    wait_until(lambda: answering(lab) or process.poll() is not None)
    if victim == "there":
        for pid in answering(lab):
            kill(pid)
    elif victim == "connection":
        assert masters(lab)
        for pid in masters(lab):
            kill(pid)
    else:
        process.kill()
    process.wait(2 * PATIENCE_SECONDS)
    done = lab(f"cd project && stoker {submit_line(key, 'any')}")
    assert done.code == 0, done
    assert jobs_there(lab)[key] == 1


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def answering(lab: Lab) -> list[int]:
    return [pid for pid, words in processes(lab.user.uid) if words[-3:] == ["servers", "answer", "--json"]]


def masters(lab: Lab) -> list[int]:
    """The processes that keep the connections, which name their sockets."""
    config = str(lab.config)
    return [pid for pid, words in processes(os.getuid()) if "ControlMaster=yes" in words and config in words]


def processes(uid: int) -> list[tuple[int, list[str]]]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                text = Path(f"/proc/{name}/cmdline").read_text(errors="replace")
                found.append((int(name), [word for word in text.split("\0") if word] or [""]))
        except OSError:
            continue
    return found
