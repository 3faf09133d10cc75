"""Which claims are compatible, and ids of GPUs of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.device import NodeGpu, node_gpu
from stoker.core.lease import Claim, compatible

MANY = 99

claims = st.builds(Claim, st.just("A"), st.none() | st.integers(0, 10), st.integers(1, 4))


@pytest.mark.parametrize(
    ("wanted", "held", "capacity", "answer"),
    [
        pytest.param(Claim("A"), [], 10, True, id="a free device is anybody's"),
        pytest.param(Claim("A", 50), [], 10, True, id="even for more than it has, which the plan must know"),
        pytest.param(Claim("A"), [Claim("A")], None, False, id="alone is alone"),
        pytest.param(Claim("A", share=2), [Claim("A")], None, False, id="the one who was first decides"),
        pytest.param(Claim("A"), [Claim("A", share=2)], None, False, id="the one who comes decides too"),
        pytest.param(Claim("A", share=2), [Claim("A", share=2)], None, True, id="two who both suffer one other"),
        pytest.param(Claim("A", share=3), [Claim("A", share=3)] * 3, None, False, id="three claims are the limit"),
        pytest.param(Claim("A", share=9), [Claim("A", share=9), Claim("A", share=2)], None, False, id="least patient"),
        pytest.param(Claim("A", 4, MANY), [Claim("A", 6, MANY)], 10, True, id="memory that just fits"),
        pytest.param(Claim("A", 5, MANY), [Claim("A", 6, MANY)], 10, False, id="memory that does not"),
        pytest.param(Claim("A", 5, MANY), [Claim("A", 6, MANY)], None, True, id="unknown memory"),
        pytest.param(Claim("A", None, 2), [Claim("A", None, 2)], 10, True, id="shared without any reservation"),
    ],
)
def test_compatible(wanted: Claim, held: list[Claim], capacity: int | None, answer: bool) -> None:
    """The smallest share limits the number of claims, the capacity their memory."""
    assert compatible(wanted, held, capacity) is answer


@given(claims, st.lists(claims, max_size=4), st.none() | st.integers(0, 30))
def test_shares_of_existing_claims_are_respected(wanted: Claim, held: list[Claim], capacity: int | None) -> None:
    """A compatible claim respects the shares of all existing claims."""
    if held and compatible(wanted, held, capacity):
        together = [*held, wanted]
        assert all(len(together) <= claim.share for claim in together)
        assert capacity is None or sum(claim.memory or 0 for claim in together) <= capacity


@given(claims, claims, st.none() | st.integers(0, 30))
def test_order_does_not_matter(one: Claim, other: Claim, capacity: int | None) -> None:
    """Compatibility does not depend on the order of claims."""
    assert compatible(one, [other], capacity) == compatible(other, [one], capacity)


@pytest.mark.parametrize(
    ("device_id", "gpu"),
    [
        ("lab:n3 0", NodeGpu("lab", "n3", "0")),
        ("lab:n3 MIG-1:2", NodeGpu("lab", "n3", "MIG-1:2")),
        ("GPU-12ab", None),
        ("0", None),
        ("my gpu", None),
    ],
)
def test_a_gpu_of_a_node(device_id: str, gpu: NodeGpu | None) -> None:
    """Its id can be read again; those of this machine are none."""
    assert node_gpu(device_id) == gpu
    assert gpu is None or gpu.id == device_id
