"""`python -m stoker.adviser STATE`: the command of the job that advises a sweep."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from stoker.adviser.loop import Adviser, only_adviser
from stoker.core.errors import StokerError
from stoker.store.paths import Paths
from stoker.store.trials import sweep_of_adviser
from stoker.store.writer import open_store


def main() -> int:
    """Advise until the sweep is over; an error ends up in the log of this job."""
    paths, job = Paths(Path(sys.argv[1])), int(os.environ["STOKER_JOB_ID"])
    try:
        with contextlib.closing(open_store(paths)) as store:
            sweep_id = sweep_of_adviser(store, job)
            with only_adviser(paths, sweep_id):
                return Adviser(paths, store, sweep_id).run()
    except StokerError as error:
        print(f"{error.message}; {error.hint}" if error.hint else error.message, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
