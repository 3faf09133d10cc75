"""`python -m stoker.features.sweep.tuner STATE`: the command of the tuner of a sweep."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from pathlib import Path

from stoker.app.jobs.installation import how_to_add_extra
from stoker.core.errors import StokerError, UsageError
from stoker.features.sweep.store import sweep_of_tuner
from stoker.features.sweep.tuner.loop import Tuner, only_tuner, say
from stoker.features.sweep.tuner_job import TRY_AGAIN
from stoker.store.paths import Paths
from stoker.store.writer import open_store

AGAIN_SECONDS = 5.0
"""Pause before this job is started again after a failure that may pass."""


def main() -> int:
    """Tune until the sweep is over; an error ends up in the log of this job, and all but the user's may pass."""
    paths, job = Paths(Path(sys.argv[1])), int(os.environ["STOKER_JOB_ID"])
    try:
        with contextlib.closing(open_store(paths)) as store:
            sweep_id = sweep_of_tuner(store, job)
            with only_tuner(paths, sweep_id), contextlib.closing(Tuner(paths, store, sweep_id)) as tuner:
                return tuner.run()
    except StokerError as error:
        say(str(error))
        if error.exit_code != StokerError.exit_code:  # of the user
            return error.exit_code
    except OSError as error:  # such as a full disk
        say(str(error))
    except ImportError as error:
        say(f"{error}; {how_to_add_extra('sweep')}, then stoker sweep extend")
        return UsageError.exit_code
    except Exception:
        say(traceback.format_exc())
    time.sleep(AGAIN_SECONDS)
    return TRY_AGAIN


if __name__ == "__main__":
    sys.exit(main())
