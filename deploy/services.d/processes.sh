# shellcheck shell=bash disable=SC2154 # `dir` is set by deploy/services, which sources this under set -e
# Part of deploy/services: the ports and passwords of this folder, and how its processes are started, found and ended.

declare -A state=()

load_state() {
  local key value
  [ -e "$dir/state" ] || return 1
  while IFS='=' read -r key value; do state[$key]=$value; done <"$dir/state"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port() { # below the range that outgoing connections are given, so that a stopped server's port stays free
  local port
  while :; do
    port=$((20100 + RANDOM % 5500))
    [[ " ${state[*]} " == *" $port "* ]] || listens "$port" || break
  done
  echo "$port"
}

secret() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

make_state() {
  local key
  # Others may pass through, since the unprivileged user of Postgres must; what is secret has its own mode.
  mkdir -p "$dir/run" "$dir/log"
  chmod 711 "$dir"
  exec 8>"$dir/run/state.lock"
  flock 8
  if ! load_state; then
    for key in postgres rabbitmq rabbitmq_dist rabbitmq_epmd redis s3; do state[${key}_port]=$(free_port); done
    for key in postgres rabbitmq redis s3_access s3; do state[${key}_secret]=$(secret); done
    (umask 077 && for key in "${!state[@]}"; do echo "$key=${state[$key]}"; done | sort >"$dir/state.new")
    mv "$dir/state.new" "$dir/state"
  fi
  exec 8>&-
}

started_at() { # PID -> when it started, which together with the pid names one process for good; fails for a zombie
  # whose threads are all gone: until then the first thread may be a zombie while others still hold the ports.
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra stat <<<"${stat##*) }"
  [[ ${stat[0]} != [ZX] || ${stat[17]} -gt 1 ]] && echo "${stat[19]}"
}

pid_of() { # NAME -> its pid, if it runs
  local pid start
  read -r pid start 2>/dev/null <"$dir/run/$1.pid" || return 1
  [ -n "$start" ] && [ "$(started_at "$pid")" = "$start" ] && echo "$pid"
}

launch() { # NAME COMMAND...: runs on after this script, in a session of its own
  local name=$1 log=$dir/log/$1.log pid
  shift
  [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -lt 16000000 ] || : >"$log"
  printf '\n== started at %(%F %T)T\n' >>"$log"
  # The variable marks every process of the service, for `strays`. 9 is the lock, which a server must not hold.
  PENSTOCK_SERVICE=$dir/$name setsid "$@" </dev/null >>"$log" 2>&1 9>&- &
  pid=$!
  echo "$pid $(started_at "$pid")" >"$dir/run/$name.pid"
}

with_children() { # PID... -> those and all that descend from them
  local -A children=()
  local path pid parent todo=("$@")
  while IFS=$':\t' read -r path _ parent; do
    pid=${path#/proc/}
    children[$parent]+=" ${pid%/status}"
  done < <(grep -sH '^PPid:' /proc/[0-9]*/status)
  while [ "${#todo[@]}" -gt 0 ]; do
    pid=${todo[0]}
    echo "$pid"
    # shellcheck disable=SC2206 # a list of numbers
    todo=("${todo[@]:1}" ${children[$pid]:-})
  done
}

strays() { # NAME -> pids of processes started for it, whatever became of the pid file or of their parent
  grep -lszxF "PENSTOCK_SERVICE=$dir/$1" /proc/[0-9]*/environ | cut -d/ -f3 || true
}

kill_all() { # PID...: at once, children too, and returns when they are gone
  local pid pids
  [ $# -gt 0 ] || return 0
  kill -STOP "$@" 2>/dev/null || true # a stopped parent starts no more children
  mapfile -t pids < <(with_children "$@")
  kill -KILL "${pids[@]}" 2>/dev/null || true
  for pid in "${pids[@]}"; do
    while started_at "$pid" >/dev/null; do sleep 0.02; done
  done
}

kill_strays() { local pids; mapfile -t pids < <(strays "$1"); kill_all "${pids[@]}"; }

fail_with_log() { # NAME WHAT
  tail -n 30 "$dir/log/$1.log" >&2 || true
  die "$1: $2; the end of $dir/log/$1.log is above"
}

refuse_taken_port() { # NAME KEY
  local tries
  for ((tries = 0; tries < 50; tries++)); do
    listens "${state[$2_port]}" || return 0
    sleep 0.1
  done
  die "$1: port ${state[$2_port]}, its own since the first start, was taken by another program:" \
    "stop that, or write another number into $dir/state"
}
