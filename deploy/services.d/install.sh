# shellcheck shell=bash disable=SC2154 # variables of deploy/services, which sources this under set -e
# Part of deploy/services: where the programs are, and how missing ones are installed or built.

readonly s3s_version=0.14.1

postgres_bin() { # -> folder of the newest server's programs
  local bin
  bin=$(find /usr/lib/postgresql/*/bin -name initdb 2>/dev/null | sort -V | tail -n 1)
  [ -x "$bin" ] || bin=$(readlink -f "$(command -v initdb)") || return 1
  [ -x "$(dirname "$bin")/postgres" ] && dirname "$bin"
}

# Debian's command of that name changes to its system user and refuses others; the script behind it does not.
rabbitmq_bin() {
  local bin=/usr/lib/rabbitmq/bin/rabbitmq-server
  [ -x "$bin" ] || bin=$(command -v rabbitmq-server) && echo "$bin"
}

s3s_bin() { echo "${PENSTOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock}/bin/s3s-fs-$s3s_version"; }

missing_packages() { # NAME... -> Debian packages
  local name
  for name; do
    case $name in
    postgres) postgres_bin >/dev/null || echo postgresql ;;
    rabbitmq) { rabbitmq_bin && command -v epmd; } >/dev/null || echo rabbitmq-server ;;
    redis) { command -v redis-server && command -v redis-cli; } >/dev/null || echo redis-server ;;
    s3) [ -x "$(s3s_bin)" ] || command -v cc >/dev/null || printf 'gcc\nlibc6-dev\n' ;;
    esac
  done
}

# Debian's packages start their server, make a database cluster and enable both for the next boot. None of it is wanted.
readonly policy=/usr/sbin/policy-rc.d kept_policy=/usr/sbin/policy-rc.d.kept-by-penstock
readonly cluster_conf=/etc/postgresql-common/createcluster.d/penstock.conf

forbid_starting() {
  trap allow_starting EXIT
  allow_starting # in case an earlier run was killed in between
  [ ! -e "$policy" ] || mv "$policy" "$kept_policy"
  printf '#!/bin/sh\n# penstock deploy/services: installation starts nothing\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  mkdir -p "$(dirname "$cluster_conf")"
  echo 'create_main_cluster = false' >"$cluster_conf"
}

allow_starting() {
  if grep -qs 'penstock deploy/services' "$policy"; then rm -f "$policy"; fi
  if [ -e "$kept_policy" ]; then mv "$kept_policy" "$policy"; fi
  rm -f "$cluster_conf"
  rmdir --ignore-fail-on-non-empty -p "$(dirname "$cluster_conf")" 2>/dev/null || true
}

apt_install() ( # PACKAGE...
  exec 8>/run/lock/penstock-services-install.lock
  flock 8
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  before=$(mktemp) log=$dir/log/install.log
  forbid_starting
  dpkg-query -W -f '${Package}\n' | sort >"$before"
  apt-get -q -o DPkg::Lock::Timeout=300 update >"$log" 2>&1 8>&- || say "apt-get update failed, going on with the old lists"
  apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-upgrade --no-install-recommends "$@" >>"$log" 2>&1 8>&- || {
    tail -n 20 "$log" >&2
    die "apt-get could not install $*: the end of $log is above"
  }
  mapfile -t new < <(dpkg-query -W -f '${Package}\n' | sort | comm -13 "$before" -)
  rm -f "$before"
  mapfile -t units < <(dpkg -L "${new[@]}" | grep -oP '/systemd/system/\K(postgresql|rabbitmq|redis|epmd)[^/@]*\.(service|socket)$' | sort -u)
  if [ "${#units[@]}" -gt 0 ] && command -v systemctl >/dev/null; then systemctl --quiet disable "${units[@]}" >>"$log" 2>&1 || true; fi
)

install_packages() { # NAME...
  local packages
  mapfile -t packages < <(missing_packages "$@")
  [ "${#packages[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    die "please install the Debian packages ${packages[*]} (apt-get install ${packages[*]}) and run this again;" \
      "servers that Debian starts with them may be stopped and disabled, Penstock starts its own"
  fi
  say "installing ${packages[*]}"
  apt_install "${packages[@]}"
  mapfile -t packages < <(missing_packages "$@")
  [ "${#packages[@]}" -eq 0 ] || die "${packages[*]}: installed, but the commands are not found"
}

build_s3s() (
  bin=$(s3s_bin) log=$dir/log/s3-build.log
  mkdir -p "$(dirname "$bin")"
  exec 8>"$bin.lock"
  flock 8 # two checkouts share the cache
  [ ! -x "$bin" ] || exit 0
  command -v cargo >/dev/null || die "building s3s-fs needs Rust: https://rustup.rs"
  say "building s3s-fs $s3s_version, once, into $bin (a few minutes)"
  build=$(mktemp -d "$bin.build.XXXXXX")
  trap 'rm -rf "$build"' EXIT
  # Its program is behind the feature `binary`.
  CARGO_TARGET_DIR=$build/target cargo install s3s-fs --version "=$s3s_version" --locked --features binary --bin s3s-fs \
    --no-track --root "$build" >"$log" 2>&1 8>&- 9>&- || {
    tail -n 20 "$log" >&2
    die "s3s-fs could not be built: the end of $log is above"
  }
  mv "$build/bin/s3s-fs" "$bin"
)
