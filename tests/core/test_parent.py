"""The GPUs of a job as schedulers inside the job see them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.core.device import Device, Process, Reading
from stoker.core.errors import Impossible
from stoker.core.launch import variables
from stoker.core.parent import (
    ParentAllocation,
    ParentGpu,
    parent_gpus,
    part_of,
    part_of_reading,
    read_parent,
)
from stoker.core.settings import EngineSettings
from stoker.core.spec import JobSpec, Resources
from support.build import GIB, a_job, simulated

UUIDS = ("GPU-aaaa-1", "GPU-bbbb-2")
ONE_AND_TWO = ParentAllocation(
    "12.3", "/w", tuple(ParentGpu(str(i), uuid, uuid, 10 * GIB, 24 * GIB) for i, uuid in enumerate(UUIDS, 1))
)


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["1"], ["1"]),
        (["2", "1"], ["2", "1"]),
        (["0"], ["1"]),
        (["0", "1"], ["1", "2"]),
        (["1", "0"], ["2", "1"]),
        (["GPU-bbbb-2"], ["2"]),
        (["GPU-b"], ["2"]),
        (["1", "1"], ["1", "1"]),
        ([], []),
    ],
)
def test_names(words: list[str], labels: list[str]) -> None:
    """Numbers of the machine and UUIDs; where a word is none of these, all count as CUDA does in the job, from 0."""
    assert [gpu.label for gpu in ONE_AND_TWO.named(words)] == labels


@pytest.mark.parametrize("words", [["3"], ["1", "7"], ["GPU-cccc-3"], ["-1"], ["0", "2"], ["x"], ["9" * 5000]])
def test_others_are_refused(words: list[str]) -> None:
    """A GPU that the job does not have is refused by a sentence that names the job and its GPUs."""
    with pytest.raises(Impossible, match=r"inside job 12\.3, which has GPUs 1, 2"):
        ONE_AND_TWO.named(words)


def test_one_for_each_ledger_name() -> None:
    """A slot of several GPUs can be divided; a slot without any has none to divide."""
    slot = Device("0,1", "0,1", "0,1", ("name:0", "name:1"), "declared")
    empty = Device("none", "", "", (), "declared")
    assert [(gpu.label, gpu.visible, gpu.claim) for gpu in parent_gpus([slot], Resources())] == [
        ("0", "0", "name:0"),
        ("1", "1", "name:1"),
    ]
    assert parent_gpus([empty], Resources()) == ()


def test_memory_is_what_is_reserved() -> None:
    """The part of a sharing job, and of an exclusive one all that its own parent has; a slot listed twice has half."""
    (gpu,) = simulated(24)
    assert [each.memory for each in parent_gpus([gpu], Resources(memory=6 * GIB))] == [6 * GIB]
    assert [each.memory for each in parent_gpus([gpu], Resources())] == [24 * GIB]
    part = replace(gpu, memory=10 * GIB, whole=24 * GIB)
    (deeper,) = parent_gpus([part], Resources())
    assert (deeper.memory, deeper.whole) == (10 * GIB, 24 * GIB)
    assert [each.memory for each in parent_gpus([replace(part, share=2)], Resources())] == [5 * GIB]
    assert part_of(gpu, deeper) == part


@pytest.mark.parametrize("text", ["", "nonsense", "{}", '{"job":"1","folder":"/w","gpus":[]}', '{"job":1}'])
def test_what_cannot_be_read_is_no_parent(text: str) -> None:
    """A variable of another version, or a user's own, is no allocation."""
    assert read_parent(text) is None
    assert read_parent(ONE_AND_TWO.text) == ONE_AND_TWO


def test_settings_of_the_machine_do_not_count_inside() -> None:
    """They were heeded when the job got its GPUs; parts of GPUs have their reserve outside of them."""
    settings = EngineSettings(devices="7", min_free=1, max_use=1, margin=7)
    assert ONE_AND_TWO.restrict(settings) == EngineSettings(margin=7, reserve=0)
    whole = replace(ONE_AND_TWO, gpus=(ParentGpu("1", "1", "sim:1", 24 * GIB, 24 * GIB),))
    assert whole.restrict(settings) == EngineSettings(margin=7)


def test_readings_show_only_children() -> None:
    """Neither co-tenants nor the parent's own processes are in the way; memory that is unknown stays unknown."""
    child, other = Process(7, GIB, "me"), Process(8, 9 * GIB, "you")
    reading = Reading(used=11 * GIB, utilisation=50, processes=(child, other))
    part = part_of_reading(reading, lambda process: process.pid == 7)
    assert (part.used, part.processes, part.utilisation) == (GIB, (child,), 50)
    unknown = part_of_reading(replace(reading, processes=(replace(child, memory=None), other)), lambda _: True)
    assert unknown.used is None


def test_a_cap_is_a_part_of_the_whole_gpu() -> None:
    """PyTorch counts from the whole GPU, and the limit of the parent job is replaced."""
    (gpu,) = simulated(24)
    job = a_job(1, spec=JobSpec(resources=Resources(memory=6 * GIB), cap=True))
    inherited = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.5"}
    given = variables(job, [replace(gpu, memory=12 * GIB, whole=24 * GIB)], inherited)
    assert given["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True,per_process_memory_fraction:0.2500"
