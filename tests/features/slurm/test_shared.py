"""The folder of a bundle on the shared directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.features.slurm.shared import JOURNALS, MARKER, BundleFolder, append

ORDER = {"attempt": "1.1", "environment": "ab"}


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    folder = BundleFolder(tmp_path / "bundle")
    folder.make([ORDER, {**ORDER, "attempt": "2.1"}], {"ab": {"PATH": "/bin"}})
    return folder


def test_orders_can_be_read_again(folder: BundleFolder) -> None:
    """Each with the environment that it names."""
    assert folder.is_complete
    assert folder.order(1) == ({**ORDER, "attempt": "2.1"}, {"PATH": "/bin"})


def test_a_folder_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    """An engine may have died within it."""
    (tmp_path / "orders.new").write_text("half")
    folder = BundleFolder(tmp_path)
    assert not folder.is_complete
    folder.make([ORDER], {"ab": {}})
    assert folder.order(0) == (ORDER, {})


def test_an_attempt_is_claimed_once(folder: BundleFolder) -> None:
    """By a node, or by the head that takes it back."""
    assert [folder.claim(0), folder.claim(0), folder.claim("pilot")] == [True, False, True]
    assert folder.claims() == [0]


def test_only_whole_lines_of_a_journal_are_read(folder: BundleFolder) -> None:
    """The rest is read when it is complete."""
    append(folder.at(JOURNALS, 0), b"one\ntw")
    assert folder.journal(0, 0) == b"one\n"
    append(folder.at(JOURNALS, 0), b"o\n")
    assert folder.journal(0, 4) == b"two\n"


def test_messages_are_for_one_attempt(folder: BundleFolder) -> None:
    """The oldest first."""
    folder.ping(1)
    folder.stop(0, 2.0, 10)
    folder.stop(1, 3.0, 0)
    assert folder.messages(1) == [{"index": 1, "ping": True}, {"index": 1, "grace": 3.0, "signal": 0}]


def test_the_last_words_of_a_program_that_could_not_run(folder: BundleFolder) -> None:
    """Empty if it left none."""
    folder.fail(0, "first")
    folder.fail(0, "n1: no python")
    assert (folder.error(0), folder.error(1)) == ("n1: no python", "")


def test_whether_it_was_submitted(folder: BundleFolder) -> None:
    """A new engine need not ask Slurm then."""
    assert not folder.was_submitted
    folder.note_submitted("17")
    assert folder.was_submitted


def test_a_removed_folder_and_one_that_is_out_of_sight(folder: BundleFolder) -> None:
    """Only the first has been given up by the head; the marker tells them apart."""
    assert list(folder.removal())
    out_of_sight = folder.is_removed
    (Path(folder.path).parent / MARKER).touch()
    assert (out_of_sight, folder.is_removed) == (False, True)
    assert not Path(folder.path).exists()
    list(folder.removal())  # once more does no harm
