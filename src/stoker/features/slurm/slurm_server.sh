# Runs on each server of a private Slurm, through ssh or directly: sh -s -- probe|start|stop|... ARGUMENTS < this file
# Answers are lines `stoker:KEY VALUE`; whatever else a login shell prints is skipped.
umask 077
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'stoker:%s\n' "$*"; }
fail() { say "failed $*"; exit 1; }
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" { print $20 }'; }
remember() { echo "$2 $(started_at "$2")" > "$local/$1.process"; }
alive() { # NAME: whether the daemon of that name runs; leaves its process id in $pid
  pid= at=
  read -r pid at 2>/dev/null < "$local/$1.process" || return 1
  [ -n "$at" ] && [ "$(started_at "$pid")" = "$at" ]
}
running() { for file in "$local"/*.process; do name=${file##*/}; name=${name%.process}; alive "$name" && printf '%s ' "$name"; done; }
listening() { awk '$4 == "0A" { sub(/.*:/, "", $2); printf "%s ", $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null; }
last_words() { grep -hiE 'error|fatal' "$@" 2>/dev/null | tail -n 1 | cut -c 1-300; }

probe() { # LOCAL TOKEN_FILE
  local=$1
  say hostname "$(hostname -s 2>/dev/null || uname -n)"
  say cpus "$(getconf _NPROCESSORS_ONLN)"
  say memory "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)"
  say gpus "$(timeout 20 nvidia-smi -L 2>/dev/null | grep -c '^GPU ')"
  say files "$(for file in /dev/nvidia[0-9] /dev/nvidia[0-9][0-9]; do [ -c "$file" ] && printf '%s ' "$file"; done)"
  command -v munged >/dev/null && version=$(slurmd -V 2>/dev/null)
  say version "${version-}"
  say token "$(cat "$2" 2>/dev/null)"
  say uid "$(id -u)"
  say client "${SSH_CONNECTION-}"
  say ports "$(listening)"
  say running "$(running)"
}

launch() { # NAME PORT COMMAND...: start a daemon and wait until it listens; PORT 0 for munged
  name=$1 port=$2; shift 2
  wanted=$(printf '%04X' "$port") tries=0
  case " $(listening)" in *" $wanted "*) fail "port $port is in use by another program" ;; esac
  setsid "$@" < /dev/null > "$local/$name.out" 2>&1 9>&- &
  remember "$name" $!
  while alive "$name"; do
    if [ "$port" = 0 ]; then [ -S "$local/munge.socket" ] && return
    else case " $(listening)" in *" $wanted "*) say started "$name"; return ;; esac; fi
    tries=$((tries + 1)); [ $tries -lt 200 ] || break
    sleep 0.05
  done
  if grep -qi 'address already in use' "$local/$name".*; then fail "port $port is in use by another program"; fi
  fail "$name does not start: $(last_words "$local/$name.out" "$local/$name.log" "$local/slurmd.$name.log" || tail -n 1 "$local/$name.out")"
}

start() { # LOCAL CONF PREFIX DAEMON PORT NODE: DAEMON is slurmctld or slurmd, NODE its name in Slurm, empty for the controller
  local=$1 conf=$2 prefix=$3 daemon=$4 port=$5 node=$6
  export SLURM_CONF="$conf"
  if [ -n "$prefix" ]; then
    PATH=$prefix/usr/bin:$prefix/usr/sbin:$PATH
    export LD_LIBRARY_PATH="$prefix/libraries:$prefix/libraries/slurm-wlm${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
  [ -r "$conf" ] || fail "it does not see $conf"
  mkdir -p "$local/state" 2>/dev/null
  [ -d "$local" ] && [ ! -L "$local" ] && [ -O "$local" ] || fail "$local cannot be made, or belongs to another user"
  chmod 700 "$local" || fail "$local cannot be changed"
  exec 9> "$local/lock"
  flock -w 30 9 || fail "another start is under way"
  if ! alive munged; then
    rm -f "$local/munge.socket"
    # --force: the directory of the socket is closed to others on purpose; they could only get credentials of their own.
    launch munged 0 munged -F --force --socket="$local/munge.socket" --key-file="${conf%/*}/munge.key" --num-threads=2 \
      --pid-file="$local/munged.pid" --log-file="$local/munged.log" --seed-file="$local/munged.seed"
  fi
  if alive "${node:-$daemon}"; then say running "${node:-$daemon}"; return; fi
  if [ "$daemon" = slurmctld ]; then launch slurmctld "$port" slurmctld -D; return; fi
  mkdir -p "$local/spool.$node"
  set -- slurmd -D
  [ "$node" = "$(hostname -s)" ] || set -- "$@" -N "$node"  # not every Slurm is built for another name
  # Without -d an unpacked slurmd would use an installed slurmstepd of another release.
  [ -z "$prefix" ] || set -- "$@" -d "$prefix/usr/sbin/slurmstepd"
  launch "$node" "$port" "$@"
}

stop_one() { # NAME
  alive "$1" || return
  kill "$pid"
  tries=0
  while alive "$1" && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.05; done
  alive "$1" && kill -9 "$pid"
  rm -f "$local/$1.process"
  say stopped "$1"
}

stop() { # LOCAL NAME...: munged goes with the last daemon that needs it
  local=$1; shift
  [ -O "$local" ] || return 0 # it never ran here
  exec 9> "$local/lock"
  flock -w 30 9 || fail "a start is under way"
  for one in "$@"; do stop_one "$one"; done
  [ "$(running)" != "munged " ] || stop_one munged
}

running_daemons() { # LOCAL
  local=$1
  say running "$(running)"
}

complaint() { # LOCAL NODE: the last error that the node's slurmd wrote
  local=$1
  words=$(last_words "$local/$2.out" "$local/slurmd.$2.log")
  alive "$2" || words="slurmd has ended${words:+: $words}"
  say complaint "$words"
}

clean() { # LOCAL
  local=$1
  [ -O "$local" ] || return 0
  [ -z "$(running)" ] || fail "daemons run there"
  rm -rf "$local"
  rmdir "${local%/*}" 2>/dev/null
  say cleaned
}

"$@"
