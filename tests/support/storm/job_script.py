"""The script of the jobs of a storm, and the log that the jobs write themselves, which Stoker never sees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.storm.memory import SHORT, Memory

SCRIPT = "job.sh"
WARM_SCRIPT = "job.py"
"""Becomes the script; it is for jobs that are forked from a template."""
RUN_LOG = "run.log"
LOCKS = "locks"
DOUBLE = 97
"""The code of a run that found the lock of its job or of one of its GPUs held, which only another run can do."""
SAVED = 75
"""The code of a run that saved its state and gave way."""
LOCK_SECONDS = 1
"""How long a run waits for its locks: the kernel closes the files of a killed process a moment after its memory."""

_JOB = """\
say() {
  echo "$1 $who $STOKER_JOB_ID $STOKER_ATTEMPT ${CUDA_VISIBLE_DEVICES:--} $(date +%s.%N) $2 ${STORM_WORD:--}" >> run.log
}
id=$1 codes=$2 seconds=$3 kind=${4%,shared} memory=${5:-}
who=$id${STOKER_ARRAY_INDEX:+.$STOKER_ARRAY_INDEX}
if [ -z "${STORM_GUARDED:-}" ]; then
  # All processes of a run inherit these locks, so that the kernel itself refuses a second run beside the first.
  export STORM_GUARDED=1
  guard=-x
  [ "$kind" = "$4" ] || guard=-s
  set -- sh job.sh "$@"
  for device in $(echo "${CUDA_VISIBLE_DEVICES:-}" | tr , ' '); do
    set -- flock $guard -w LOCK_SECONDS -E DOUBLE -F "locks/gpu-$device" "$@"
  done
  set -- flock -w LOCK_SECONDS -E DOUBLE -F "locks/job-$who" "$@"
  case $kind in
    bare) exec env -i PATH="$PATH" STORM_GUARDED=1 STOKER_JOB_ID="$STOKER_JOB_ID" STOKER_ATTEMPT="$STOKER_ATTEMPT" \
      CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-}" STORM_WORD="${STORM_WORD:-}" \\
      STOKER_ARRAY_INDEX="${STOKER_ARRAY_INDEX:-}" setsid -w "$@" ;;
    session) exec setsid -w "$@" ;;
    *) exec "$@" ;;
  esac
fi
n=$STOKER_ATTEMPT
while [ "$n" -gt 1 ] && [ "$codes" != "${codes#*,}" ]; do n=$((n - 1)) codes=${codes#*,}; done
code=${codes%%,*}
[ "$kind" != stubborn ] || trap '' TERM
say start 0
if [ "$kind" = child ]; then
  (sleep 0.04; say after 0) &
fi
case $kind in
  daemon) (env -i PATH="$PATH" setsid sleep 30 &) ;;
  forks) for n in $(seq 100); do sleep 30 & done ;;
  loud) head -c "${STORM_BYTES:-20000000}" /dev/urandom ;;
esac
if [ "$kind" = overwritten ]; then
  # In place of the shell, in whose environment it would be found.
  exec "$STORM_PYTHON" -c "
import ctypes, sys, time
first, last = map(int, open('/proc/self/stat').read().rpartition(')')[2].split()[47:49])
ctypes.memset(first, 0, last - first)
seconds, before, code, after = sys.argv[1:]
time.sleep(float(seconds))
open('run.log', 'a').write(f'end {before} {time.time()} {code} {after}\\n')
sys.exit(int(code))" \\
    "$seconds" "$who $STOKER_JOB_ID $STOKER_ATTEMPT ${CUDA_VISIBLE_DEVICES:--}" "$code" "${STORM_WORD:--}"
elif [ "$kind" = saves ]; then
  sleep "$seconds" & sleeper=$!
  trap 'kill "$sleeper"; say end SAVED; exit SAVED' USR1
  wait "$sleeper"
  trap '' USR1
elif [ -z "$memory" ]; then
  sleep "$seconds"
else
  shift 5
  # Only some frameworks name those who have the memory, and only one of these has limits.
  [ $((id % 2)) = 0 ] || [ "$*" = --cap ] || set -- --oom-text jax
  "$STORM_PYTHON" -P "$STORM_TRAIN" --memory "${memory#*=}M" --seconds "$seconds" --load 10 --steps 1 "$@"
  case $? in
    0) ;;
    1) code=SHORT ;;
    *) code=98 ;;
  esac
fi
case $code in
  s*) say end $((128 + ${code#s})); kill -"${code#s}" $$; sleep 60 ;;
  *) say end "$code"; exit "$code" ;;
esac
"""


@dataclass(frozen=True)
class LogLine:
    """A line that a job wrote into its log."""

    word: str
    """start, end, or after: a child that outlived the command."""
    number: int
    """Which of the storm's jobs it is."""
    job: int
    attempt: int
    """Which of the job's runs it is, by what the run was told."""
    devices: tuple[str, ...]
    at: float
    code: int
    edition: str
    """The word that the job was given to write, which an edit changes."""
    task: int | None = None
    """Its index by what the run was told, if it is a task of an array."""

    @property
    def key(self) -> tuple[int, int]:
        """Job and run, of which there must be one only."""
        return self.job, self.attempt


class End(NamedTuple):
    """An exit code as a shell tells it, and the signal, 0 for none."""

    code: int
    signal: int = 0


def write_script(directory: Path) -> None:
    """Put what the jobs run into their directory."""
    numbers = {"SHORT": SHORT, "DOUBLE": DOUBLE, "SAVED": SAVED, "LOCK_SECONDS": LOCK_SECONDS}
    script = _JOB
    for word, number in numbers.items():
        script = script.replace(word, str(number))
    (directory / SCRIPT).write_text(script)
    (directory / WARM_SCRIPT).write_text(f"import os, sys\nos.execvp('sh', ['sh', '{SCRIPT}', *sys.argv[1:]])\n")
    (directory / LOCKS).mkdir(exist_ok=True)


def command(number: int, codes: tuple[str, ...], seconds: float, kind: str, memory: Memory | None = None) -> str:
    """A job's line for the shell; it ends with a code for each run, `s9` for a signal, the last for all that follow."""
    shared = ",shared" if memory is not None and not memory.whole else ""
    line = f"exec sh {SCRIPT} {number} {','.join(codes)} {seconds:.3f} {kind}{shared}"
    return line if memory is None else f"{line} {memory.words}{' --cap' if memory.capped else ''}"


def read_run_log(directory: Path) -> list[LogLine]:
    """All that jobs wrote down, in that order."""
    path = directory / RUN_LOG
    return [_parse(line) for line in path.read_text().splitlines()] if path.exists() else []


def end_of_run(codes: tuple[str, ...], run: int) -> End:
    """How a run must end that nobody stops."""
    code = codes[min(run, len(codes)) - 1]
    return End(128 + int(code[1:]), int(code[1:])) if code.startswith("s") else End(int(code))


def _parse(line: str) -> LogLine:
    word, name, job, attempt, devices, at, code, edition = line.split()
    number, _, task = name.partition(".")
    device_ids = () if devices == "-" else tuple(devices.split(","))
    index = int(task) if task else None
    return LogLine(word, int(number), int(job), int(attempt), device_ids, float(at), int(code), edition, index)
