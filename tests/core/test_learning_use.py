"""What is kept of an attempt's use of its GPUs stays small and loses no peak."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from stoker.core.learning import CURVE, MIB, Use, reached, seen

LOOKS = st.lists(st.tuples(st.floats(0.01, 60.0), st.integers(0, 2**36)), min_size=1, max_size=300)


@given(LOOKS)
@example([(1.0, 0)] * CURVE + [(1.0, MIB)])
def test_a_long_run_makes_no_long_curve(looks: list[tuple[float, int]]) -> None:
    """However often somebody looked, few points are kept, in order, and the highest is among them."""
    use, moment = Use(), 0.0
    for step, memory in looks:
        moment += step
        use = seen(use, moment, memory, None)
    assert len(use.curve) <= CURVE
    assert list(use.curve) == sorted(use.curve, key=lambda point: point[0])
    assert use.peak == max(memory for _, memory in looks)
    assert max(memory for _, memory in use.curve) == use.peak // MIB


def test_how_busy_counts_only_while_alone() -> None:
    """What a GPU does for several cannot be told apart."""
    use = seen(seen(seen(Use(), 1.0, 5, 80), 2.0, 5, None), 3.0, 5, 60)
    assert use.utilisation == 70
    assert seen(Use(), 1.0, 5, None).utilisation is None


def test_a_peak_that_no_look_met() -> None:
    """The driver's own account counts where it is higher."""
    use = seen(Use(), 1.0, 5, None)
    assert reached(use, 9).peak == 9
    assert reached(use, 3).peak == 5
