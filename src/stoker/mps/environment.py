"""What a client of MPS finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.mps.place import Place

MIB = 2**20
GIVEN = "STOKER_MPS_GIVEN"
"""The names of the variables that are ours, so that a job which submits others does not pass them on."""


def client_variables(place: Place, percentage: int, amount: int | None, own: Mapping[str, str]) -> dict[str, str]:
    """How it finds its daemon, and what it may have of the GPU; the user's own word goes before all but the first.

    The amount is in bytes, None where nothing is set aside: it holds for each process, which can get no more.
    """
    given = {"CUDA_MPS_LOG_DIRECTORY": place.log}
    if percentage < 100:
        given["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
    if amount is not None:  # a client sees one GPU, which is its first
        given["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={-(-amount // MIB)}M"
    unless = {name: value for name, value in given.items() if name not in own}
    variables = {"CUDA_MPS_PIPE_DIRECTORY": place.pipe, **unless}
    return {**variables, GIVEN: ",".join(variables)}


def without_given(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment without what makes the job that we are in a client, which says nothing of other jobs."""
    if GIVEN not in environment:
        return environment
    ours = {GIVEN, *environment[GIVEN].split(",")}
    return {name: value for name, value in environment.items() if name not in ours}
