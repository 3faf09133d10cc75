#!/bin/bash
# Counts to 30. When it is asked to leave, it saves how far it came, and the next run goes on from there.
state=count.$STOKER_JOB_ID
trap 'echo $n > "$state"; exit 75' "${STOKER_SAVE_SIGNAL:-USR1}"
n=$(cat "$state" 2>/dev/null || echo 0)
echo "run ${STOKER_RESTART:-0} begins at $n"
while [ "$n" -lt 30 ]; do sleep 1; n=$((n + 1)); done
