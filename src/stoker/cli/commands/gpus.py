"""`stoker gpus`: the devices, how much of each is free, and who is on it."""

from __future__ import annotations

import click

from stoker.app.jobs.config import cluster_part, config_here
from stoker.app.jobs.option_values import parse_vram, vram_word
from stoker.app.views.gpus import Gpus, gpus_of, known_devices
from stoker.cli.console import say
from stoker.cli.options import Screen, StokerCommand, screen_options, write_json, write_plain
from stoker.cli.screens.gpus import render_gpus
from stoker.cli.screens.plain import DEVICE_COLUMNS, plain_lines
from stoker.cli.screens.text import write_lines
from stoker.core.errors import UsageError
from stoker.core.settings import LOCAL
from stoker.core.spec import Resources


@click.command(name="gpus", cls=StokerCommand)
@click.option(
    "--pick",
    type=click.IntRange(1),
    metavar="N",
    help="Print N free GPUs, for use in $(...); exit 1 if there are not enough.",
)
@click.option(
    "-m", "--vram", metavar="SIZE", help="With --pick: free memory needed on each GPU. Default: the whole GPU."
)
@click.option("--gpu-type", metavar="NAME", help="With --pick: only GPUs with this in their name, for example a100.")
@click.option("-M", "--cluster", metavar="NAME", help="The nodes of that cluster, and your jobs on their GPUs.")
@screen_options
def command(*, pick: int | None, vram: str | None, gpu_type: str | None, cluster: str | None, screen: Screen) -> int:
    """Show GPUs, their memory, and who uses them; with -M those of a cluster.

    \b
      stoker gpus
      CUDA_VISIBLE_DEVICES=$(stoker gpus --pick 2 --vram 10G) python3 train.py
      stoker gpus --json
      stoker gpus -M lab
    """
    if cluster is not None and pick is not None:
        raise UsageError("--pick chooses devices of this machine", "on a cluster Slurm chooses them")
    if cluster not in (None, LOCAL):
        return _show_cluster(str(cluster), screen)
    if pick is None and (vram or gpu_type):
        raise UsageError("--vram and --gpu-type are for --pick", "write it as --pick 1 --vram 10G")
    size = None if vram is None else _picked_size(vram)
    with known_devices(screen.paths) as facts:
        if pick is None:
            _show(gpus_of(facts), screen)
            return 0
        from stoker.app.views.gpus import pick_devices

        resources = Resources(pick, size, model=(gpu_type or "").lower())
        names = [device.visible for device in pick_devices(facts, resources)]
        if screen.form == "json":
            write_json(gpus_of(facts, names))
        else:
            print(",".join(names))
    return 0


def _show_cluster(name: str, screen: Screen) -> int:
    settings = config_here(lambda _: None).cluster(name)
    cluster_part("nodes", settings)(name, settings, screen)
    return 0


def _picked_size(vram: str) -> int | None:
    word = vram_word(vram)
    if word == "auto":
        raise UsageError("--vram auto needs a job to learn from", "write it as --pick 1 --vram 10G")
    return None if word else parse_vram(vram)


def _show(gpus: Gpus, screen: Screen) -> None:
    if screen.form == "json":
        write_json(gpus)
    elif screen.form == "plain":
        write_plain(plain_lines(gpus.devices, DEVICE_COLUMNS))
        for note in gpus.notes:
            say(note)
    else:
        write_lines(render_gpus(gpus, screen.size[0]), screen.color)
