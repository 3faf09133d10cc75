"""Two versions of code: what differs, as git and patch can apply it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from stoker.features.freeze.compare import MOST_BYTES, CodeVersion, changes_between, diff_lines
from stoker.features.freeze.snapshots import LINK, PLAIN_FILE, PROGRAM, FrozenFile
from support.optional import require
from support.wait import PATIENCE_SECONDS

CODE = b"".join(b"line %d\n" % number for number in range(30))


def version(files: dict[str, bytes], *, programs: tuple[str, ...] = (), links: tuple[str, ...] = ()) -> CodeVersion:
    """Code by path; some files can be executed, and some are links to what they contain."""
    made = {
        path: FrozenFile(
            path,
            PROGRAM if path in programs else LINK if path in links else PLAIN_FILE,
            hashlib.sha256(data).hexdigest()[:40],
            len(data),
        )
        for path, data in files.items()
    }
    return CodeVersion(made, lambda file: files[file.path])


def patch(before: CodeVersion, after: CodeVersion) -> bytes:
    lines = [line.text for change in changes_between(before, after) for line in diff_lines(change, before, after)]
    return b"".join(line.encode(errors="surrogateescape") + b"\n" for line in lines)


def kinds(before: CodeVersion, after: CodeVersion) -> dict[str, str]:
    return {change.path: change.kind for change in changes_between(before, after)}


def test_kinds_of_changes() -> None:
    """A file with the same content elsewhere was renamed, also if a part of it changed."""
    before = version({"a": CODE, "b": CODE + b"b", "c": b"c\n", "d": b"d\n", "same": b"same", "x.sh": b"x\n"})
    after = version(
        {"new/a": CODE, "b": b"b" + CODE, "e": b"e\n", "d": b"other\n", "same": b"same", "x.sh": b"x\n"},
        programs=("x.sh",),
    )
    assert kinds(before, after) == {
        "new/a": "renamed",
        "b": "changed",
        "c": "removed",
        "e": "added",
        "d": "changed",
        "x.sh": "mode",
    }
    assert changes_between(before, before) == []
    similar = version({"z": CODE.replace(b"line 3\n", b"line three\n")})
    assert kinds(version({"a": CODE}), similar) == {"z": "renamed"}


def test_unified_diff() -> None:
    """As git writes it, also at the end of a file without a newline."""
    assert patch(version({"a": b"1\n2\n3"}), version({"a": b"1\n2\nthree\n"})).decode().splitlines() == [
        "diff --git a/a b/a",
        *("--- a/a", "+++ b/a", "@@ -1,3 +1,3 @@", " 1", " 2", "-3", "\\ No newline at end of file", "+three"),
    ]


def test_what_has_no_lines() -> None:
    """Binary files and very large ones are named with their sizes."""
    large = b"x\n" * MOST_BYTES
    before = version({"model.bin": b"\0\1", "large": large})
    after = version({"model.bin": b"\0\2\3", "large": large + b"x"})
    text = patch(before, after).decode()
    assert "Binary files a/model.bin and b/model.bin differ (2 and 3 bytes)" in text
    assert f"Files a/large and b/large differ ({len(large)} and {len(large) + 1} bytes)" in text
    assert "@@" not in text


@pytest.mark.parametrize("name", ["plain.py", "with blank", 'quote"d', "new\nline", "tab\t", "\udcff\udcfe", "ü"])
def test_git_applies_it(name: str, tmp_path: Path) -> None:
    """Whatever the names and the bytes of the files are."""
    require("git")
    before = version({name: CODE, "gone": b"gone\n", "run.sh": b"#!/bin/sh\n", f"old {name}": CODE + b"more\n"})
    changed = CODE.replace(b"line 7\n", b"line \xff\r\n\n") + b"end"
    after = version(
        {
            name: changed,
            "added": b"\ttab\n\x1b[31mred\n",
            "run.sh": b"#!/bin/sh\n",
            f"moved {name}": CODE + b"more\nx\n",
        },
        programs=("run.sh",),
    )
    for path, file in before.files.items():
        (tmp_path / path).write_bytes(before.read(file))
    applied = subprocess.run(
        ["git", "apply", "--whitespace=nowarn"],
        timeout=PATIENCE_SECONDS,
        cwd=tmp_path,
        input=patch(before, after),
        capture_output=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    assert {str(path.name): path.read_bytes() for path in tmp_path.iterdir()} == {
        path: after.read(file) for path, file in after.files.items()
    }
    assert (tmp_path / "run.sh").stat().st_mode & 0o100


def test_links_differ_by_their_targets() -> None:
    """A link is compared by where it leads."""
    before, after = version({"l": b"old"}, links=("l",)), version({"l": b"new"}, links=("l",))
    assert "-old" in patch(before, after).decode()
