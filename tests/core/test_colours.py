"""Groups keep their colours."""

from __future__ import annotations

from stoker.core.colours import COLOURS, colours_of

NAMES = [f"group {number}" for number in range(20)]


def test_a_new_group_changes_no_other() -> None:
    """Its colour is decided after theirs."""
    for count in range(20):
        before, after = colours_of(NAMES[:count]), colours_of(NAMES[: count + 1])
        assert {name: after[name] for name in before} == before


def test_colours_differ_as_long_as_there_are_enough() -> None:
    """Then each is used once more before any is used a third time."""
    places = list(colours_of(NAMES).values())
    assert sorted(places[:COLOURS]) == sorted(places[COLOURS : 2 * COLOURS]) == list(range(COLOURS))


def test_the_name_decides() -> None:
    """A group alone has the same colour in every queue."""
    assert colours_of(["vision"]) == {"vision": colours_of(["vision", "language"])["vision"]}
