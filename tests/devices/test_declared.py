"""Devices that are only names given by the user."""

from __future__ import annotations

import pytest

from stoker.core.device import Device
from stoker.core.errors import UsageError
from stoker.devices.detect import DeclaredDevices

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


def declared(*words: str, known: dict[str, str] | None = None) -> tuple[Device, ...]:
    return DeclaredDevices(words, known).snapshot(0.0).devices


def test_one_device_per_word_in_the_listed_order() -> None:
    """Each slot word becomes a device, and a job sees the word exactly as it was given."""
    devices = declared("2", "0,1", UUID, " 1")
    assert [device.visible for device in devices] == ["2", "0,1", UUID, " 1"]
    assert [device.label for device in devices] == ["2", "0,1", UUID, " 1"]
    assert {device.kind for device in devices} == {"declared"}


def test_nothing_is_measured() -> None:
    """A declared device has no memory and no reading, so nothing is packed on it."""
    snapshot = DeclaredDevices(["0"]).snapshot(12.5)
    assert snapshot.at == 12.5
    assert not snapshot.readings
    assert not snapshot.devices[0].measured
    assert snapshot.devices[0].memory is None


def test_a_word_listed_again_is_a_further_slot() -> None:
    """A GPU listed three times gives three devices with ids of their own that share one claim."""
    devices = declared("0", "0", "1", "0")
    assert [device.id for device in devices] == ["0", "0#2", "1", "0#3"]
    assert [device.claims for device in devices] == [("name:0",), ("name:0",), ("name:1",), ("name:0",)]
    assert [device.share for device in devices] == [3, 3, 1, 3]


def test_counted_ids_keep_clear_of_the_users_words() -> None:
    """A user may call a device "0#2" and still list "0" twice."""
    assert [device.id for device in declared("0", "0", "0#2")] == ["0", "0#3", "0#2"]


def test_a_slot_of_several_gpus_claims_each_of_them() -> None:
    """A slot "0,1" claims both GPUs, each name once, and blank parts claim nothing."""
    assert declared("0,1")[0].claims == ("name:0", "name:1")
    assert declared("0,0, 0")[0].claims == ("name:0",)
    assert declared("0,")[0].claims == ("name:0",)


def test_share_counts_every_slot_with_the_claim() -> None:
    """A device may be held as often as its most listed GPU is."""
    assert [device.share for device in declared("0", "0,1", "1", "0", "2")] == [3, 3, 2, 3, 1]


def test_blanks_are_seen_by_the_job_but_not_by_the_ledger() -> None:
    """The slots "1" and " 1" are the same GPU."""
    devices = declared("1", " 1")
    assert devices[0].claims == devices[1].claims == ("name:1",)
    assert [device.share for device in devices] == [2, 2]


def test_known_words_are_claimed_by_uuid() -> None:
    """Index and prefix of one GPU share its claim; a word that the driver does not know keeps its name."""
    known = {"0": UUID, "GPU-8932f937": UUID, UUID: UUID}
    devices = declared("0", "GPU-8932f937", UUID, "7", known=known)
    assert [device.claims for device in devices] == [(UUID,), (UUID,), (UUID,), ("name:7",)]
    assert [device.share for device in devices] == [3, 3, 3, 1]
    assert devices[1].visible == "GPU-8932f937"


def test_the_empty_word_is_a_slot_without_a_gpu() -> None:
    """An empty word claims nothing, may be listed often, and still has an id that can be typed."""
    devices = declared("", "")
    assert [device.id for device in devices] == ["none", "none#2"]
    assert [device.visible for device in devices] == ["", ""]
    assert [device.claims for device in devices] == [(), ()]
    assert [device.share for device in devices] == [1, 1]


def test_no_words_at_all_are_refused() -> None:
    """A run without any device is a mistake in the command."""
    with pytest.raises(UsageError) as caught:
        DeclaredDevices([])
    assert "for example" in caught.value.hint


def test_there_is_nothing_to_wait_for() -> None:
    """Declared devices never wake the engine, and closing them is harmless."""
    devices = DeclaredDevices(["0"])
    assert devices.fileno() == -1
    devices.close()
    devices.close()
