"""The fault campaign by hand, which is what `make faults` does; the directory of a round with findings stays."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from support.faults.campaign import LANES, Campaign, is_gap
from support.faults.table import TABLE, missing
from support.signals import reset_for_children


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long to draw faults; without it each fault once")
    parser.add_argument("--rounds", type=int, help="how many rounds at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=sorted(TABLE))
    parser.add_argument("--lanes", type=int, default=LANES, help="queues on trial at the same time")
    parser.add_argument("--list", action="store_true", help="show the table of faults")
    options = parser.parse_args(arguments)
    if options.list:
        for fault in TABLE.values():
            print(f"{fault.name:24} {fault.promise}{'' if fault.usual else ' (only by its name)'}")
            if why := missing(fault):
                print(f"{'':24} not here: {why}")
        return 0
    campaign = Campaign(
        options.seed, options.only, options.rounds, options.minutes, options.lanes, say=partial(print, flush=True)
    )
    campaign.run()
    print(campaign.summary())
    for done in campaign.done:
        if done.findings:
            print(
                f"again: make faults FAULTS='--only {done.fault.name} --seed {done.seed} --rounds 1'; see {done.home}"
            )
    return 1 if campaign.findings() or is_gap(campaign) else 0


if __name__ == "__main__":
    reset_for_children()
    sys.exit(main())
