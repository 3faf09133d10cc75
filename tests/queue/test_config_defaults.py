"""Default job options are those of the command line, and their values are checked where they are written."""

from __future__ import annotations

import pytest

from stoker.core.errors import UsageError
from stoker.queue.config import BUILT_IN, checked_defaults
from stoker.queue.options import JobOptions, Surroundings, spec_of

AROUND = Surroundings(cwd="/w", umask=0o022, environment="", default_out="", resolve=str)


def test_what_is_built_in() -> None:
    """Options as shown by default mean the same as none at all."""
    shown = JobOptions(**checked_defaults(dict(BUILT_IN), "here"))
    assert spec_of(shown, AROUND) == spec_of(JobOptions(), AROUND)


def test_options() -> None:
    """They can be given to JobOptions; numbers may stand where the command line takes text."""
    table = {"gpus": 2, "vram": "8G", "on": 0, "time": 90, "grace": "0", "env": {"SEED": 1, "A": "b"}}
    checked = checked_defaults(table, "here")
    assert checked == {"gpus": 2, "vram": "8G", "on": "0", "time": "90", "grace": "0", "env": {"SEED": "1", "A": "b"}}
    assert JobOptions(**checked).env == {"SEED": "1", "A": "b"}


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({"vran": "8G"}, "here: vran under [defaults] is unknown", "did you mean vram?"),
        ({"qqq": 1}, "here: qqq under [defaults] is unknown", "known are gpus, vram"),
        ({"name": "x"}, "here: name under [defaults] would be the same for all jobs", "give --name"),
        ({"strangers": "count"}, "here: strangers under [defaults] is not a job option", "put it above [defaults]"),
        ({"gpus": "two"}, "here: gpus under [defaults] is 'two', not a whole number", "--help"),
        ({"gpus": True}, "here: gpus under [defaults] is 'true', not a whole number", "--help"),
        ({"gpus": -1}, "here: gpus under [defaults]: -1 is less than nothing", "0 or more"),
        ({"vram": ["8G"]}, "here: vram under [defaults] is '8G', not text", "--help"),
        ({"vram": "lots"}, "here: vram under [defaults]: 'lots' is not a size", "6G, 512M or 1.5G, or as auto or all"),
        ({"vram": 8}, "here: vram under [defaults]: --vram 8 has no unit", "write 8G"),
        ({"time": "soon"}, "here: time under [defaults]: 'soon' is not a duration", "1h30m"),
        ({"env": "A=b"}, "here: env under [defaults] is 'A=b', not a table", "--help"),
        ({"mps": 500}, "here: mps under [defaults]: --mps=500 is not a percentage from 1 to 100", "--mps=50"),
        (["gpus"], "here: defaults is not a table", "[defaults]"),
    ],
)
def test_wrong_ones_are_refused(table: object, message: str, hint: str) -> None:
    """The error names file, key and value, and what to write instead."""
    with pytest.raises(UsageError) as refused:
        checked_defaults(table, "here")
    assert refused.value.message == message
    assert hint in refused.value.hint
