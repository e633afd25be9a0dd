# shellcheck shell=bash disable=SC2154 # variables of deploy/services, which sources this under set -e
# Part of deploy/services: each server has start_NAME, which launches it, and probe_NAME, which tells whether it answers.

instance=$(sha256sum <<<"$dir" | cut -c1-10) # names what cannot lie in the folder
pg_home=$dir/postgres
pg_as=() # Postgres refuses root

choose_postgres_user() {
  local user=nobody
  [ "$(id -u)" = 0 ] || return 0
  if id postgres >/dev/null 2>&1; then user=postgres; fi
  pg_as=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --clear-groups)
  # A checkout below /root, say, is closed to that user.
  "${pg_as[@]}" test -x "$dir" 2>/dev/null || pg_home=/var/tmp/penstock-services-$instance/postgres
}

make_postgres_home() {
  local parent socket=$pg_home/.s.PGSQL.${state[postgres_port]}
  parent=$(dirname "$pg_home")
  if [ "$parent" != "$dir" ]; then
    [ -d "$pg_home" ] || say "postgres: its user cannot enter $dir, so the data goes to $pg_home"
    mkdir -p "$parent"
    # /var/tmp is everybody's: a folder prepared by somebody else is not ours.
    [[ -O $parent && ! -L $parent ]] || die "$parent belongs to another user: remove it and run this again"
  fi
  mkdir -p "$pg_home"
  chmod 700 "$pg_home"
  [ "${#pg_as[@]}" -eq 0 ] || chown "${pg_as[1]#*=}:${pg_as[2]#*=}" "$pg_home"
  pg_sockets=$pg_home
  [ "${#socket}" -lt 107 ] || pg_sockets= # the kernel's limit; TCP is enough
}

make_postgres_data() { # in a folder of another name first, so that an interrupted one is never taken for complete
  local bin=$1 unready=$pg_home/data.new log=$dir/log/postgres.log answer
  rm -rf "$unready"
  "${pg_as[@]}" "$bin/initdb" -D "$unready" --auth-local=peer --auth-host=scram-sha-256 -E UTF8 --locale=C --data-checksums \
    >>"$log" 2>&1 9>&- || return 1
  answer=$("${pg_as[@]}" "$bin/postgres" --single -D "$unready" postgres 2>&1 9>&- <<END
create role penstock login createdb password '${state[postgres_secret]}'
grant pg_monitor to penstock
create database penstock owner penstock
END
  ) || return 1
  # The single-user mode answers an error with status 0.
  if grep -E 'ERROR|FATAL' <<<"$answer" >>"$log"; then return 1; fi
  mv "$unready" "$pg_home/data"
}

start_postgres() {
  local bin
  make_postgres_home
  cd "$pg_home" || return # the folder this was called from may be closed to the user
  bin=$(postgres_bin)
  # Another version cannot read the data; this one may have been installed since.
  [ ! -e data/PG_VERSION ] || [[ $("$bin/postgres" --version) == *" $(cat data/PG_VERSION)."* ]] ||
    die "postgres: version $(cat data/PG_VERSION) made the data, this is $("$bin/postgres" --version):" \
      "'deploy/services wipe postgres' deletes it"
  [ -d data ] || make_postgres_data "$bin" || fail_with_log postgres "could not make a database"
  # No process of this folder runs here any more; but a killed one that nobody has reaped still has its pid, and
  # Postgres would take it for running.
  rm -f data/postmaster.pid .s.PGSQL.*
  # Durable as in production: what the tests measure and kill is what users run.
  launch postgres "${pg_as[@]}" "$bin/postgres" -D "$pg_home/data" -p "${state[postgres_port]}" \
    -c listen_addresses=127.0.0.1 -c "unix_socket_directories=$pg_sockets" -c max_connections=200 \
    -c fsync=on -c synchronous_commit=on -c full_page_writes=on
}

probe_postgres() {
  [ "$(PGPASSWORD=${state[postgres_secret]} PGCONNECT_TIMEOUT=5 timeout 10 "$(postgres_bin)/psql" -X -At -h 127.0.0.1 \
    -p "${state[postgres_port]}" -U penstock -d penstock -c 'select 1' 2>/dev/null)" = 1 ]
}

start_rabbitmq() {
  local home=$dir/rabbitmq bin
  bin=$(rabbitmq_bin)
  mkdir -p "$home"
  chmod 700 "$home"
  [ -e "$home/.erlang.cookie" ] || (umask 377 && secret >"$home/.erlang.cookie")
  echo '[].' >"$home/enabled_plugins"
  : >"$home/rabbitmq-env.conf"
  cat >"$home/rabbitmq.conf" <<END
listeners.tcp.1 = 127.0.0.1:${state[rabbitmq_port]}
default_vhost = penstock
default_user = penstock
default_pass = ${state[rabbitmq_secret]}
default_user_tags.administrator = true
default_permissions.configure = .*
default_permissions.read = .*
default_permissions.write = .*
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 200MB
END
  pid_of epmd >/dev/null || {
    kill_strays epmd
    refuse_taken_port epmd rabbitmq_epmd
    launch epmd epmd -port "${state[rabbitmq_epmd_port]}" -address 127.0.0.1
  }
  # Without RUNNING_UNDER_SYSTEMD its script stays as a parent, and the pid would be that of the script. Every path
  # of the system's own RabbitMQ is replaced. Schedulers that spin while idle (+sbwt) take cores from what is tested.
  launch rabbitmq env HOME="$home" RUNNING_UNDER_SYSTEMD=true ERL_EPMD_PORT="${state[rabbitmq_epmd_port]}" \
    ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_NODENAME="penstock-$instance@localhost" \
    RABBITMQ_DIST_PORT="${state[rabbitmq_dist_port]}" RABBITMQ_CONFIG_FILE="$home/rabbitmq.conf" \
    RABBITMQ_ADVANCED_CONFIG_FILE="$home/advanced.config" RABBITMQ_CONF_ENV_FILE="$home/rabbitmq-env.conf" \
    RABBITMQ_ENABLED_PLUGINS_FILE="$home/enabled_plugins" RABBITMQ_MNESIA_BASE="$home/data" \
    RABBITMQ_LOG_BASE="$dir/log" RABBITMQ_LOGS="$dir/log/rabbitmq.log" RABBITMQ_PID_FILE="$home/pid" \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none" \
    "$bin"
}

# A broker that is ready answers the protocol header with a method frame, whose first byte is 1.
# shellcheck disable=SC2016 # expanded by the inner shell
probe_rabbitmq() {
  [ "$(timeout 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "AMQP\0\0\11\1" >&3 && head -c 1 <&3 | od -An -tu1' \
    ask "${state[rabbitmq_port]}" 2>/dev/null | tr -d ' ')" = 1 ]
}

start_redis() {
  mkdir -p "$dir/redis"
  chmod 700 "$dir/redis"
  # Nothing durable lives here: no snapshot, no log. The title stays as it is, since setting it overwrites the mark.
  cat >"$dir/redis/redis.conf" <<END
bind 127.0.0.1
port ${state[redis_port]}
dir $dir/redis
save ""
appendonly no
maxmemory 256mb
maxmemory-policy volatile-ttl
requirepass ${state[redis_secret]}
set-proc-title no
END
  launch redis redis-server "$dir/redis/redis.conf"
}

probe_redis() {
  [ "$(REDISCLI_AUTH=${state[redis_secret]} timeout 5 redis-cli -h 127.0.0.1 -p "${state[redis_port]}" ping 2>/dev/null)" = PONG ]
}

start_s3() {
  build_s3s
  mkdir -p "$dir/s3/penstock" # a folder in its root is a bucket
  chmod 700 "$dir/s3"
  launch s3 env RUST_LOG=warn "$(s3s_bin)" --host 127.0.0.1 --port "${state[s3_port]}" \
    --access-key "${state[s3_access_secret]}" --secret-key "${state[s3_secret]}" "$dir/s3"
}

# shellcheck disable=SC2016 # expanded by the inner shell
probe_s3() {
  [[ $(timeout 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" >&3 &&
    head -n 1 <&3' ask "${state[s3_port]}" 2>/dev/null | tr -d '\0') == HTTP/1.1\ * ]]
}
