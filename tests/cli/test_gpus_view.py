"""The GPUs on a terminal, from data written by hand."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.app.jobs.local_time import clock_text, to_datetime, to_datetime_or_none
from stoker.app.views.gpus import Gpus
from stoker.app.views.model import DeviceLine, ForeignProcess, LeaseLine, OtherJob
from stoker.cli.screens.gpus import device_table, render_gpus
from stoker.cli.screens.text import GPU_LOADS, MEMORY_LOADS, line_cells, load_bar, load_look, memory_bar, painted
from support.views import GIB, NOW, a_device, texts


def cell_of(device: DeviceLine, width: int = 140) -> str:
    """What the table says of who is on a device."""
    header, line = texts(device_table([device], NOW, width, 10))
    return line[header.index("JOBS") :]


def a_lease(owner: str, pid: int, size: int | None = 4 * GIB, *, yours: bool = False, job: str = "3") -> LeaseLine:
    return LeaseLine(owner, pid, "stoker", size, to_datetime(NOW - 60), yours, job)


def test_jobs_of_other_users_are_grouped_by_user() -> None:
    """One phrase for each user, with the memory of all jobs and the processes to ask about."""
    leases = [a_lease("alice", 71), a_lease("bob", 80, None), a_lease("alice", 72), a_lease("alice", 73)]
    assert cell_of(a_device(leases=leases)) == "alice: 3 jobs 12G (pids 71 72 73); bob: 1 job whole GPU (pid 80)"


def test_the_last_end_is_told() -> None:
    """As expected, or by the limit; unknown if one of the jobs has neither."""

    def cell(*ends: tuple[float | None, float | None]) -> str:
        leases = [
            replace(a_lease("alice", 7), expected_end=to_datetime_or_none(expected), until=to_datetime_or_none(latest))
            for expected, latest in ends
        ]
        return cell_of(a_device(leases=leases)).rpartition(": ")[0]

    hour = 3600.0
    expected, latest = (clock_text(NOW + hours * hour, NOW) for hours in (1, 2))
    assert cell((NOW + hour, NOW + 2 * hour)) == f"alice until ~{expected}"
    assert cell((NOW + hour, None), (None, NOW + 2 * hour)) == f"alice until {latest} latest"
    assert cell((None, None), (None, NOW + 2 * hour)) == "alice"
    assert cell((NOW - hour, NOW + 2 * hour)) == f"alice until {latest} latest"


def test_the_process_of_an_engine_is_named_as_such() -> None:
    """Where the engine does not tell the process of the job: to end the engine would stop no job."""
    leases = [a_lease("alice", 71), a_lease("alice", 70, job=""), a_lease("bob", 80, job="")]
    assert cell_of(a_device(leases=leases)) == "alice: 2 jobs 8G (pid 71, engine 70); bob: 1 job 4G (engine 80)"


def test_a_lease_is_listed_with_its_job_and_end() -> None:
    """By the id that its user knows."""
    line = LeaseLine("alice", 71, "stoker", None, to_datetime(NOW - 60), job="12.3", until=to_datetime(NOW + 3600))
    gpus = Gpus("", to_datetime(NOW), "lab", False, False, [a_device(leases=[line])], [], [])
    assert any("71" in text and "job 12.3 (stoker), until " in text for text in texts(render_gpus(gpus, 140)))


def test_many_processes_are_not_all_listed() -> None:
    """Three numbers are enough to find the user's work."""
    assert cell_of(a_device(leases=[a_lease("alice", pid) for pid in range(10, 20)])).endswith("(pids 10 11 12 …)")


def test_foreign_processes_are_grouped_by_user() -> None:
    """Those of a user with a lease belong to the lease; programs that only draw are not in the way."""
    foreign = [
        ForeignProcess(5, "carol", "python x.py", 2 * GIB),
        ForeignProcess(6, "carol", "python y.py", None),
        ForeignProcess(7, "alice", "python z.py", GIB),
        ForeignProcess(8, "gdm", "Xorg", GIB, graphics=True),
    ]
    cell = cell_of(a_device(leases=[a_lease("alice", 71)], strangers=foreign))
    assert cell == "alice: 1 job 4G (pid 71); carol: 2G foreign (pids 5 6)"


def test_jobs_of_another_queue_of_mine_are_named() -> None:
    """Their leases are not repeated as `root: stoker; root: stoker`; without a process, the lease is shown."""
    jobs = [OtherJob("12", "vit-b", 71, 4 * GIB), OtherJob("13.2", "", 72, 4 * GIB)]
    leases = [a_lease("me", 70, yours=True), a_lease("me", 70, yours=True)]
    assert cell_of(a_device(leases=leases, elsewhere=jobs)) == "other queue: 12 vit-b, 13.2 (pids 71 72)"
    assert cell_of(a_device(leases=leases)) == "you, stoker: 2 jobs 8G (pid 70)"


def test_loads_have_the_thresholds_of_nvitop() -> None:
    """The colours green, yellow and red begin where users of nvitop expect them."""
    assert [load_look(percent, GPU_LOADS) for percent in (0, 9, 10, 74, 75, 100)] == [
        *("light", "light", "moderate", "moderate", "heavy", "heavy")
    ]
    assert [load_look(percent, MEMORY_LOADS) for percent in (9, 10, 79, 80)] == [
        *("light", "moderate", "moderate", "heavy")
    ]
    codes = [painted([load_bar(4, percent)], colour=True, encoding="utf-8")[:5] for percent in (5, 50, 90)]
    assert codes == ["\x1b[32m", "\x1b[33m", "\x1b[31m"]
    assert memory_bar(10, 10 * GIB, 9 * GIB)[0].look == "heavy"


def test_the_utilisation_is_a_bar_and_a_number() -> None:
    """Without colour the number tells the same; a GPU that is not idle has at least one cell."""
    assert [texts([load_bar(4, percent)])[0] for percent in (None, 0, 1, 50, 100, 130)] == [
        *("    ", "░░░░", "█░░░", "██░░", "████", "████")
    ]


def test_the_title_explains_the_bar_where_it_fits() -> None:
    """At 80 columns in short; no title is wider than its bar."""
    titles = {width: texts(device_table([a_device()], NOW, width, 10))[0] for width in (40, 80, 100)}
    assert "█used ▒reserved ▓others ░free" in titles[80]
    assert "█ used ▒ reserved ▓ others ░ free" in titles[100]
    assert "used" not in titles[40]


def test_power_is_shown_where_there_is_room() -> None:
    """At 100 columns, and only if a GPU tells it."""
    wide, narrow = (texts(device_table([a_device()], NOW, width, 10)) for width in (100, 80))
    assert "POWER" in wide[0]
    assert "250W" in wide[1]
    assert "POWER" not in narrow[0]
    assert "POWER" not in texts(device_table([a_device(power_watts=None)], NOW, 100, 10))[0]


def test_gpus_lists_every_foreign_process() -> None:
    """With user, process number, memory and command, in no more columns than there are."""
    process = ForeignProcess(9911, "carol", "python " + "x" * 90, 2 * GIB)
    device = a_device(strangers=[process], leases=[a_lease("alice", 71)], elsewhere=[OtherJob("3", "vit", 9, None)])
    gpus = Gpus(
        "stoker.gpus/1",
        to_datetime(NOW),
        "lab7",
        simulated=False,
        engine_running=True,
        devices=[device],
        picked=[],
        notes=[],
    )
    line = next(
        line for line in texts(render_gpus(gpus, 80)) if "carol" in line and "9911" in line and "USER" not in line
    )
    assert "2.0G" in line
    assert "python xxx" in line
    for width in (20, 80, 100):
        assert max(line_cells(line) for line in render_gpus(gpus, width)) <= width
