"""Snapshots of real directories: what is in them, what is left out, and what is refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from features.freeze.repository import git, plain, repository, write
from stoker.core.errors import StokerError
from stoker.features.freeze.listing import MOST, USUAL, CodeLimits, NotFreezable, Patterns
from stoker.features.freeze.snapshots import LINK, PROGRAM, CodeSnapshot, DamagedSnapshot, SnapshotStore, frozen_top
from stoker.features.freeze.take import forget, take
from support.disk import fill, small_disk
from support.users import made_users, reachable_directory, run_as
from support.wait import PATIENCE_SECONDS, line_from

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    (tmp_path / "state").mkdir()
    return SnapshotStore(tmp_path / "state/code")


def taken(root: Path, store: SnapshotStore, limits: CodeLimits = USUAL) -> CodeSnapshot:
    """A snapshot whose tree was made."""
    made = take(str(root), store, plain(), limits)
    assert store.keep(made.snapshot)
    store.link(made.snapshot, made.others)
    return made.snapshot


def paths(snapshot: CodeSnapshot) -> set[str]:
    return {file.path for file in snapshot.files}


def test_what_git_does_not_ignore(tmp_path: Path, store: SnapshotStore) -> None:
    """Tracked and untracked files as they are now; ignored ones and results are linked to."""
    root = repository(tmp_path / "project", {"a.py": "1", "gone.py": "2", ".gitignore": "data/\n*.so\n"})
    write(root, {"a.py": "changed", "new.py": "3", "data/x": "4", "fast.so": "5", "runs/1/log.txt": "6", "m.pt": "7"})
    write(root, {"runs/code.py": "8", ".venv/x.py": "9"})
    (root / "gone.py").unlink()
    snapshot = taken(root, store)
    assert paths(snapshot) == {"a.py", ".gitignore", "new.py", "runs/code.py"}
    top = store.top(snapshot)
    assert (top / "a.py").read_text() == "changed"
    for name in ("data", "fast.so", "runs/1/log.txt", "m.pt", ".venv"):
        assert (top / name).samefile(root / name)
        assert name in store.links(snapshot.id) or "/" in name


def test_equal_trees_are_one(tmp_path: Path, store: SnapshotStore) -> None:
    """Also after an edit was undone; contents are stored once."""
    root = repository(tmp_path / "project", {"a.py": "same", "b.py": "same", "c.py": "1"})
    first = taken(root, store)
    write(root, {"c.py": "2"})
    assert taken(root, store).id != first.id
    write(root, {"c.py": "1"})
    assert taken(root, store) == first
    assert store.snapshot(first.id) == first
    assert len([path for path in store.blobs.rglob("*") if path.is_file()]) == 3
    assert len(list(store.trees.iterdir())) == 2


def test_edits_that_keep_size_and_time(tmp_path: Path, store: SnapshotStore) -> None:
    """The memory of files that were read is not fooled by them."""
    root = repository(tmp_path / "project", {"a.py": "1"})
    status = (root / "a.py").stat()
    for text in ("1", "2", "3"):
        (root / "a.py").write_text(text)
        os.utime(root / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (store.top(taken(root, store)) / "a.py").read_text() == text


def test_kinds_of_files(tmp_path: Path, store: SnapshotStore) -> None:
    """Programs stay programs; links stay within the tree or lead to where they led; sockets and pipes are left out."""
    root = repository(tmp_path / "project", {"run": "#!/bin/sh\n", "d/a": "inside"})
    (tmp_path / "outside").write_text("outside")
    (root / "run").chmod(0o755)
    for name, target in {"in": "d/a", "d/up": "../run", "out": "../outside", "abs": str(root / "d/a")}.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
        snapshot = taken(root, store)
    modes = {file.path: file.mode for file in snapshot.files}
    assert modes["run"] == PROGRAM
    assert modes["in"] == modes["out"] == LINK
    assert not {"pipe", "s"} & modes.keys()
    top = store.top(snapshot)
    assert os.access(top / "run", os.X_OK)
    for name in ("in", "d/up", "abs"):
        assert (top / name).resolve().is_relative_to(top.resolve())
    assert (top / "out").samefile(tmp_path / "outside")


def test_names_of_all_kinds(tmp_path: Path, store: SnapshotStore) -> None:
    """Names that are not UTF-8, and those with newlines, tabs and spaces."""
    root = repository(tmp_path / "project", {"a.py": ""})
    names = [os.fsdecode(b"\xff\xfe.py"), "new\nline.py", "tab\t space.py", "-dash.py", "ünicode.py"]
    write(root, dict.fromkeys(names, "x"))
    snapshot = taken(root, store)
    assert set(names) <= paths(snapshot)
    assert store.snapshot(snapshot.id) == snapshot
    assert set(names) <= set(os.listdir(store.top(snapshot)))
    assert taken(root, store) == snapshot


def test_repositories_in_repositories(tmp_path: Path, store: SnapshotStore) -> None:
    """Submodules, clones inside the tree and further work trees are frozen with their files."""
    other = repository(tmp_path / "other", {"lib.py": "1", "skip": "", ".gitignore": "*.o\n"})
    root = repository(tmp_path / "project", {"a.py": "1"})
    git(root, "submodule", "add", "-q", str(other), "sub")
    git(root, "commit", "-qm", "second")
    git(root, "clone", "-q", str(other), "clone")
    write(root, {"sub/new.py": "2", "sub/x.o": "3"})
    assert {"sub/lib.py", "sub/new.py", "clone/lib.py", "a.py"} <= paths(taken(root, store))
    assert "sub/x.o" not in paths(taken(root, store))
    git(root, "worktree", "add", "-q", str(tmp_path / "second"))
    assert "a.py" in paths(taken(tmp_path / "second", store))


def test_a_sparse_checkout(tmp_path: Path, store: SnapshotStore) -> None:
    """What is not there is not in the snapshot."""
    root = repository(tmp_path / "project", {"a/x.py": "1", "b/y.py": "2"})
    git(root, "sparse-checkout", "set", "a")
    assert paths(taken(root, store)) == {"a/x.py"}


def test_a_partial_clone(tmp_path: Path, store: SnapshotStore) -> None:
    """Files that it has not fetched are not in the snapshot, and nothing is fetched."""
    source = repository(tmp_path / "source", {"a/x.py": "1", "b/y.py": "2", "c.py": "3"})
    git(source, "config", "uploadpack.allowFilter", "true")
    for option in ("--sparse", "--no-checkout"):
        git(tmp_path, "clone", "-q", "--filter=blob:none", option, f"file://{source}", option.strip("-"))
    sparse, empty = tmp_path / "sparse", tmp_path / "no-checkout"
    source.rename(tmp_path / "unreachable")
    write(sparse, {"new.py": "4"})
    missing = git(sparse, "rev-list", "--objects", "--all", "--missing=print").count("\n?")
    assert missing == 2
    assert paths(taken(sparse, store)) == {"c.py", "new.py"}
    write(empty, {"new.py": "4"})
    assert paths(taken(empty, store)) == {"new.py"}


def test_a_partial_clone_that_must_fetch(tmp_path: Path, store: SnapshotStore) -> None:
    """Git wants a .gitignore that is not there, and its server does not answer: one sentence says so."""
    source = repository(tmp_path / "source", {"a.py": "1", "b/.gitignore": "*.o"})
    git(source, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--sparse", f"file://{source}", "clone")
    source.rename(tmp_path / "unreachable")
    write(tmp_path / "clone", {"b/new.py": "2"})
    with pytest.raises(NotFreezable, match=r"^git cannot list the files of .*") as caught:
        taken(tmp_path / "clone", store)
    assert "\n" not in caught.value.message


def test_outside_of_git(tmp_path: Path, store: SnapshotStore) -> None:
    """All files but environments, data, results and what .stokerignore names."""
    root = tmp_path / "project"
    write(root, {"a.py": "1", "d/b.py": "2", "data/x": "3", "env1/pyvenv.cfg": "", "env1/x.py": "4", "big.bin": "5"})
    write(
        root,
        {"data.csv": "", "d/skip/c.py": "6", "datasets/__init__.py": "7", ".stokerignore": "*.bin\nskip/\n/data.csv\n"},
    )
    assert paths(taken(root, store)) == {"a.py", "d/b.py", "datasets/__init__.py", ".stokerignore"}


def test_patterns() -> None:
    patterns = Patterns(["# comment", "", "*.ckpt", "cache/", "/top", "a/b"])
    for path in ("x.ckpt", "d/x.ckpt", "cache/x", "d/cache/y/z", "top", "top/x", "a/b", "a/b/c"):
        assert patterns.match(path), path
    for path in ("x.ckpts", "cache", "d/top", "d/a/b", "comment"):
        assert not patterns.match(path), path


def test_limits(tmp_path: Path, store: SnapshotStore) -> None:
    """Too many files and too many bytes are refused; a large file that git does not know is left out."""
    root = repository(tmp_path / "project", {f"{number}.py": "x" * 10 for number in range(5)})
    with pytest.raises(NotFreezable, match="5 files or more; the limit is 4"):
        taken(root, store, CodeLimits(4, 1000))
    with pytest.raises(NotFreezable, match="more than 40"):
        taken(root, store, CodeLimits(5, 40))
    write(root, {".stokerignore": "[0-3].py\n"})
    assert paths(taken(root, store, CodeLimits(4, 1000))) == {"4.py", ".stokerignore"}
    (root / ".stokerignore").unlink()
    with open(root / "huge", "wb") as file:
        file.truncate(2 * 2**30)
    assert "huge" not in paths(taken(root, store, MOST))
    assert (store.top(taken(root, store)) / "huge").is_symlink()


def test_without_git(tmp_path: Path, store: SnapshotStore) -> None:
    """A sentence that says what is missing."""
    root = repository(tmp_path / "project", {"a.py": ""})
    with pytest.raises(NotFreezable, match="git is not installed"):
        take(str(root), store, {"PATH": str(tmp_path)}, USUAL)


def test_a_damaged_repository(tmp_path: Path, store: SnapshotStore) -> None:
    root = repository(tmp_path / "project", {"a.py": ""})
    (root / ".git/HEAD").write_text("nonsense")
    with pytest.raises(NotFreezable, match="git cannot list the files"):
        taken(root, store)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_unreadable_files(tmp_path: Path, store: SnapshotStore) -> None:
    """They are named."""
    root = repository(tmp_path / "project", {"a.py": "", "secret": "x"})
    (root / "secret").chmod(0)
    with pytest.raises(NotFreezable, match=r"cannot read .*secret: Permission denied"):
        taken(root, store)


def print_refusal(root: str, folder: str) -> None:
    """What the user who runs this is told."""
    with pytest.raises(NotFreezable) as caught:
        take(root, SnapshotStore(Path(folder)), {**plain(), "HOME": folder}, USUAL)
    print(caught.value.message)


def test_files_that_another_user_cannot_read() -> None:
    """The file is named."""
    with made_users(1) as (user,), reachable_directory() as place:
        own = repository(place / "own", {"a.py": "", "secret": "x"})
        (own / "secret").chmod(0)
        (place / "state").mkdir()
        for folder in (own, place / "state"):
            subprocess.run(["chown", "-R", f"{user.uid}:{user.gid}", folder], check=True, timeout=PATIENCE_SECONDS)
        said = run_as(user, print_refusal, own, place / "state/code")
        assert said == f"cannot read {own}/secret: Permission denied\n"


def test_a_file_that_changes_meanwhile(tmp_path: Path, store: SnapshotStore) -> None:
    """It is whole, from before or after; so is one that is removed and made again."""
    root = repository(tmp_path / "project", {"a.py": "0" * 5000})
    stop = threading.Event()

    def rewrite() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            (root / "draft.tmp").write_text(str(number % 10) * 5000)
            (root / "draft.tmp").rename(root / "a.py")
            (root / "other.py").unlink(missing_ok=True)
            (root / "other.py").write_text("x")

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for _ in range(30):
            made = take(str(root), store, plain(), USUAL)
            file = next(file for file in made.snapshot.files if file.path == "a.py")
            assert len(set(store.read(file.blob))) == 1
            assert file.size == 5000
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)


def test_contents_that_were_removed(tmp_path: Path, store: SnapshotStore) -> None:
    """They are stored again, although the files have not changed since they were read."""
    root = repository(tmp_path / "project", {"a.py": "1"})
    made = take(str(root), store, plain(), USUAL)
    for blob in store.blobs.rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert not store.keep(made.snapshot)
    assert not list(store.trees.iterdir())
    forget(str(root), store)
    assert (store.top(taken(root, store)) / "a.py").read_text() == "1"


def test_a_missing_or_damaged_snapshot(tmp_path: Path, store: SnapshotStore) -> None:
    """Neither is used."""
    root = repository(tmp_path / "project", {"a.py": "1"})
    snapshot = taken(root, store)
    assert frozen_top(store.folder, snapshot.id) == (str(store.top(snapshot)), str(root))
    with pytest.raises(DamagedSnapshot, match="cannot be read"):
        frozen_top(store.folder, "0" * 16)
    with open(store.tree(snapshot.id) / "manifest", "ab") as file:
        file.write(b"more")
    with pytest.raises(DamagedSnapshot, match="damaged"):
        store.snapshot(snapshot.id)


def test_a_copy_for_the_user(tmp_path: Path, store: SnapshotStore) -> None:
    """It can be edited, and the snapshot stays."""
    root = repository(tmp_path / "project", {"a.py": "1", "d/b.py": "2"})
    snapshot = taken(root, store)
    store.check_out(snapshot, tmp_path / "copy")
    (tmp_path / "copy/d/b.py").write_text("edited")
    (tmp_path / "copy/new").touch()
    assert (store.top(snapshot) / "d/b.py").read_text() == "2"


def test_killed_at_any_moment(tmp_path: Path, store: SnapshotStore) -> None:
    """A process that is killed leaves no half tree, and the next one makes it whole."""
    root = repository(tmp_path / "project", {f"{number}.py": str(number) for number in range(200)})
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom stoker.features.freeze.listing import USUAL\n"
        "from stoker.features.freeze.snapshots import SnapshotStore\nfrom stoker.features.freeze.take import take\n"
        "store = SnapshotStore(Path(sys.argv[2]))\nprint(flush=True)\n"
        "made = take(sys.argv[1], store, os.environ, USUAL)\nprint(flush=True)\nstore.keep(made.snapshot)\n"
    )
    for lines, delay in ((1, 0), (1, 3000), (1, 30000), (2, 0), (2, 3000), (2, 10000)):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(root), str(store.folder)], stdout=subprocess.PIPE, env=plain()
        )
        for _ in range(lines):
            line_from(process.stdout)
        for _ in range(delay):
            pass
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
        for tree in store.trees.glob("[!.]*"):
            assert len(list((tree / "project").glob("*.py"))) == 200
    snapshot = taken(root, store)
    assert (store.top(snapshot) / "199.py").read_text() == "199"


def test_a_full_disk(tmp_path: Path) -> None:
    """A sentence that says what to do; nothing half is left, and it works once there is space."""
    with small_disk(tmp_path / "disk", "size=2M") as disk:
        root = repository(tmp_path / "project", {f"{number}.py": str(number) * 10_000 for number in range(20)})
        ballast = fill(disk)
        with pytest.raises(StokerError, match=r"cannot freeze the code .*No space left") as caught:
            taken(root, SnapshotStore(disk / "code"))
        assert "nothing was submitted" in caught.value.hint
        ballast.unlink()
        snapshot = taken(root, SnapshotStore(disk / "code"))
        assert len(list((disk / "code/trees").iterdir())) == 1
        assert (SnapshotStore(disk / "code").top(snapshot) / "7.py").read_text() == "7" * 10_000


def test_directories_that_git_keeps_for_outputs(tmp_path: Path, store: SnapshotStore) -> None:
    """They lead to the user's own, so that a program can write there beside its source."""
    files = {"a.py": "1", "out/.gitkeep": "", "deep/er/.gitignore": "*", "code/.gitkeep": "", "code/b.py": "2"}
    root = repository(tmp_path / "project", files)
    write(root, {"table.csv": "x"})
    snapshot = taken(root, store)
    assert paths(snapshot) == {"a.py", "code/.gitkeep", "code/b.py"}
    (store.top(snapshot) / "out/new").write_text("mine")
    (store.top(snapshot) / "deep/er/new").write_text("mine")
    assert (root / "out/new").read_text() == (root / "deep/er/new").read_text() == "mine"
    assert (store.top(snapshot) / "table.csv").is_symlink()


def test_git_answers_in_a_tree(tmp_path: Path, store: SnapshotStore) -> None:
    root = repository(tmp_path / "project", {"a.py": "1"})
    git(root, "worktree", "add", "-q", str(tmp_path / "other"))
    for folder in (root, tmp_path / "other"):
        top = store.top(taken(folder, store))
        assert git(top, "rev-parse", "HEAD") == git(root, "rev-parse", "HEAD")
        assert git(top, "status", "--porcelain") == ""
