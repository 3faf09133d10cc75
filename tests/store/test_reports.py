"""Reports of jobs are read from untrusted files."""

from __future__ import annotations

from pathlib import Path

from stoker.store.reports import Latest, OwnWord, latest_text, own_word, read_latest, read_reports


def reports_file(tmp_path: Path, *lines: bytes) -> Path:
    """A file with these lines, the last of which may not be finished."""
    path = tmp_path / "7.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def test_invalid_lines_are_skipped(tmp_path: Path) -> None:
    """Incomplete lines, other JSON and invalid bytes do not hide the rest."""
    good = b'{"at": 1.5, "attempt": 2, "values": {"loss": 0.5}}'
    path = reports_file(tmp_path, b"", b"nonsense", b"[1]", b'{"values": {}}', b"\xff\xfe", good, b'{"at": 2, "val')
    (report,) = read_reports(path)
    assert report.as_dict() == {"at": 1.5, "attempt": 2, "loss": 0.5}


def test_no_reports(tmp_path: Path) -> None:
    """A missing and an empty file give no reports."""
    assert read_latest(tmp_path / "none.jsonl") is None
    assert read_latest(reports_file(tmp_path, b"")) is None


def test_the_newest_of_each_name_counts(tmp_path: Path) -> None:
    """Only reports of the last attempt count."""
    path = reports_file(
        tmp_path,
        b'{"at": 1, "attempt": 1, "values": {"accuracy": 0.9}}',
        b'{"at": 2, "attempt": 2, "values": {"step": 1, "loss": 0.123456789}}',
        b'{"at": 3, "attempt": 2, "done": 3, "total": 12}',
        b'{"at": 4, "attempt": 2, "values": {"step": 2}}',
        b"",
    )
    latest = read_latest(path)
    assert latest == Latest({"step": 2, "loss": 0.123456789}, 3, 12)
    assert latest_text(latest) == "25% (3/12), step=2, loss=0.123457"


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    """A large file costs no more than a small one."""
    path = reports_file(tmp_path, *[b'{"at": 1, "values": {"step": %d}}' % step for step in range(100_000)], b"")
    assert read_latest(path) == Latest({"step": 99_999})
    assert len(read_reports(path, 1000)) < 50


def test_the_last_save_of_a_run_counts(tmp_path: Path) -> None:
    """Not one of another run, nor one at an impossible time; and a save hides no value."""
    saves = [(1, 15.0), (2, 12.0), (2, 18.0), (2, 99.0), (2, -1.0)]
    lines = [f'{{"at": {at}, "attempt": {attempt}, "saved": true}}'.encode() for attempt, at in saves]
    path = reports_file(tmp_path, b'{"at": 11, "attempt": 2, "values": {"step": 1}}', *lines, b"")
    assert own_word(read_reports(path), run=2, since=10.0, now=20.0) == OwnWord(kept=8.0)
    assert own_word(read_reports(path), run=3, since=10.0, now=20.0) == OwnWord()
    assert read_latest(path) == Latest({"step": 1})


def test_progress_with_a_total_of_zero(tmp_path: Path) -> None:
    """A total of zero has no percentage."""
    assert latest_text(Latest({"note": "x"}, 1, 0)) == "note=x"
