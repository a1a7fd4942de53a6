#!/usr/bin/env bash
# Installs the Debian packages that building (`setup.sh build`) or building and testing (`setup.sh test`) needs.
# Quick and silent when all are present; never asks questions. It knows Debian 12 and its relatives only.
set -euo pipefail

build_packages=(build-essential cmake ninja-build ccache pkg-config nlohmann-json3-dev libsimdjson-dev libfmt-dev
  libcli11-dev libgtest-dev libbenchmark-dev libxxhash-dev libssl-dev libutf8proc-dev libpcre2-dev libedit-dev libboost1.81-dev libzstd-dev python3)
test_packages=(python3-numpy clang libclang-rt-14-dev llvm-14)
optional_packages=()  # tests that need them skip where they cannot be had
# The official clients run on Node, the chat page in a browser; any version that is there will do.
if [[ "${E2E:-}" != 0 ]]; then
  command -v node > /dev/null || test_packages+=(nodejs)
  command -v npm > /dev/null || test_packages+=(npm)
  command -v chromium chromium-browser google-chrome > /dev/null || optional_packages+=(chromium)
  optional_packages+=(haproxy curl)  # a real balancer, and an example
fi

case "${1:-test}" in
  build) wanted=("${build_packages[@]}"); optional_packages=() ;;
  test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
  *) echo "usage: tools/setup.sh [build|test]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  echo "setup: this system has no apt-get; install the equivalents of these Debian packages yourself, then run" \
    "'cmake --preset release && cmake --build build': ${wanted[*]} ${optional_packages[*]}" >&2
  exit 2
fi

# dpkg-query fails when it does not know a package; what it did print counts.
installed=" $({ dpkg-query -W -f='${Package}:${db:Status-Status}\n' "${wanted[@]}" "${optional_packages[@]}" 2> /dev/null || true; } | tr '\n' ' ') "
missing=() missing_optional=()
for package in "${wanted[@]}"; do [[ "$installed" == *" $package:installed "* ]] || missing+=("$package"); done
for package in "${optional_packages[@]}"; do [[ "$installed" == *" $package:installed "* ]] || missing_optional+=("$package"); done
(( ${#missing[@]} + ${#missing_optional[@]} == 0 )) && exit 0

as_root=()
if (( EUID != 0 )); then
  if command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [[ -t 0 ]]; }; then
    as_root=(sudo)
  elif (( ${#missing[@]} == 0 )); then
    echo "setup: no right to install ${missing_optional[*]}; the tests that need it are skipped" >&2
    exit 0
  else
    echo "setup: missing packages and no right to install them; run as root: apt-get install ${missing[*]} ${missing_optional[*]}" >&2
    exit 2
  fi
fi

echo "setup: installing ${missing[*]} ${missing_optional[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300
  -o Dpkg::Use-Pty=0)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${apt[@]}" update > "$log" 2>&1 || true  # a stale list may still do; the installation decides
if (( ${#missing[@]} > 0 )) && ! "${apt[@]}" install --no-install-recommends "${missing[@]}" >> "$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get could not install ${missing[*]}; see its message above" >&2
  exit 2
fi
for package in "${missing_optional[@]}"; do
  "${apt[@]}" install --no-install-recommends "$package" >> "$log" 2>&1 ||
    echo "setup: $package could not be installed; the tests that need it are skipped" >&2
done
