"""Boards of other users are read as hostile."""

from __future__ import annotations

import os

import pytest

from stoker.core.job import Job, Waiting
from stoker.core.planner.queue import WaitingJobs
from stoker.core.spec import Command, JobSpec, Resources
from stoker.features.lab.formats import BOARD, BoardJob, WaitingKind, decode_board, encode_board
from stoker.features.lab.publisher import waiting_kinds
from stoker.ledger import Ledger
from stoker.ledger.files import LARGEST, MOST_BYTES, MOST_GPUS
from support.ledger_files import lease_name, planted

GOOD = '{"version":1,"jobs":[{"job":"1","pid":7,"since":5.0,"utilisation":50,"title":"vit"}]}'


@pytest.mark.parametrize(
    "contents",
    [
        "",
        "[]",
        GOOD[:-1],
        GOOD + " " * MOST_BYTES,
        GOOD.replace('"version":1', '"version":2'),
        GOOD.replace("5.0", "NaN"),
        GOOD.replace("5.0", "-1.0"),
        GOOD.replace("5.0", "253402300900"),
        GOOD.replace('"pid":7', '"pid":-7'),
        GOOD.replace('"pid":7', '"pid":7,"user":"root"'),
        GOOD.replace("50", "101"),
        GOOD.replace("50", "-1"),
        GOOD.replace('"job":"1"', r'"job":"\u001b[2J"'),
        GOOD.replace("vit", "v" * 201),
        '{"version":1,"waiting":[{"jobs":-1,"gpus":1,"since":5.0}]}',
        '{"version":1,"waiting":[{"jobs":1,"gpus":9999,"since":5.0}]}',
        f'{{"version":1,"jobs":[{",".join(["1"] * 401)}]}}',
    ],
)
def test_bad_boards_are_ignored(ledger: Ledger, contents: str) -> None:
    """With a warning that names the file."""
    name = lease_name().replace(".lease", f".{BOARD}")
    with planted(ledger, name, contents.encode()):
        posts = ledger.posts(BOARD, decode_board)
        assert not posts.contents
        assert name in posts.warnings[0]


def test_a_board_lives_as_long_as_its_engine(ledger: Ledger) -> None:
    """A newer one replaces it; a file without a process is removed by its user."""
    job = BoardJob("12.3", 71, 5.0, 40)
    held = ledger.post(BOARD, encode_board([job], [WaitingKind(3, 2, 5.0)]))
    held = ledger.post(BOARD, encode_board([job], []), held)
    ((uid, board),) = ledger.posts(BOARD, decode_board).contents.values()
    assert (uid, board.jobs, board.waiting) == (os.geteuid(), (job,), ())
    os.close(held.fd)
    assert not ledger.posts(BOARD, decode_board).contents
    assert not list(ledger.path.iterdir())


def test_jobs_that_ask_for_too_much() -> None:
    """They do not void the board of their user: what they want is told as far as readers believe it."""
    waiting = WaitingJobs()
    for job_id, resources in enumerate([Resources(10**9, 2**60), Resources(), Resources(1)], 1):
        waiting.add(Job(job_id, 0, Command(("true",)), JobSpec(resources), Waiting(9.0), 10.0 + job_id))
    _, board = decode_board(encode_board([], waiting_kinds(waiting.groups())), 0)
    assert board.waiting == (WaitingKind(2, 1, 12.0), WaitingKind(1, MOST_GPUS, 11.0, LARGEST))


def test_a_board_always_fits() -> None:
    """Of jobs with long titles, only some are told."""
    jobs = [BoardJob(str(number), number, 5.0, 40, "\N{SNOWMAN}" * 200) for number in range(1000)]
    _, board = decode_board(encode_board(jobs, []), 0)
    assert 40 < len(board.jobs) < 400
    _, board = decode_board(encode_board([BoardJob("1", 1, 5.0)] * 1000, []), 0)
    assert len(board.jobs) == 400
