#!/usr/bin/env bash
# Installs the Debian packages that building (`setup.sh build`) or building and testing (`setup.sh test`) needs.
# Quick and silent when all are present; never asks questions. It knows Debian 12 and its relatives only.
set -euo pipefail

build_packages=(build-essential cmake ninja-build ccache pkg-config nlohmann-json3-dev libsimdjson-dev libfmt-dev
  libcli11-dev libgtest-dev libbenchmark-dev libxxhash-dev libssl-dev libutf8proc-dev libpcre2-dev libedit-dev libboost1.81-dev python3)
test_packages=(python3-numpy clang libclang-rt-14-dev llvm-14)
# The official clients run on Node; any version that is there will do.
if [[ "${E2E:-}" != 0 ]]; then
  command -v node > /dev/null || test_packages+=(nodejs)
  command -v npm > /dev/null || test_packages+=(npm)
fi

case "${1:-test}" in
  build) wanted=("${build_packages[@]}") ;;
  test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
  *) echo "usage: tools/setup.sh [build|test]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  echo "setup: this system has no apt-get; install the equivalents of these Debian packages yourself, then run" \
    "'cmake --preset release && cmake --build build': ${wanted[*]}" >&2
  exit 2
fi

missing=()
# dpkg-query fails when it does not know a package; what it did print counts.
installed=" $({ dpkg-query -W -f='${Package}:${db:Status-Status}\n' "${wanted[@]}" 2> /dev/null || true; } | tr '\n' ' ') "
for package in "${wanted[@]}"; do
  [[ "$installed" == *" $package:installed "* ]] || missing+=("$package")
done
(( ${#missing[@]} == 0 )) && exit 0

as_root=()
if (( EUID != 0 )); then
  if command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [[ -t 0 ]]; }; then
    as_root=(sudo)
  else
    echo "setup: missing packages and no right to install them; run as root: apt-get install ${missing[*]}" >&2
    exit 2
  fi
fi

echo "setup: installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300
  -o Dpkg::Use-Pty=0)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${apt[@]}" update > "$log" 2>&1 || true  # a stale list may still do; the installation decides
if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" >> "$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get could not install ${missing[*]}; see its message above" >&2
  exit 2
fi
