#!/usr/bin/env bash
# From a fresh Debian 12 to a first result, or to passed tests:
#
#   ./bootstrap.sh demo     install what is missing, build, analyse the sample dump, say where the results lie
#   ./bootstrap.sh test     install what is missing, build, run every test
#   ./bootstrap.sh build    install what is missing, build
#   ./bootstrap.sh claims   install what is missing, build, replay what papers claim on the sample dump
#   ./bootstrap.sh bench    build, then time the CPU path, and a GPU's where there is one, against floor and peers
set -euo pipefail
cd "$(dirname "$0")"

packages=(
  cmake ninja-build g++ pkg-config git
  libeigen3-dev libhwy-dev libfmt-dev nlohmann-json3-dev libcli11-dev libzip-dev libpng-dev libstb-dev
  catch2 libexpat1-dev libbenchmark-dev
  libopenmpi-dev openmpi-bin  # runs on several machines
  libimgui-dev libglfw3-dev libgl-dev libegl-dev libgl1-mesa-dri fonts-inter fonts-dejavu-core  # the dashboard
)

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

install_missing() {
  local missing=()
  command -v dpkg-query >/dev/null || {
    echo "bootstrap.sh installs with apt; elsewhere, install the equivalents of: ${packages[*]}" >&2
    return
  }
  for package in "${packages[@]}" "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "Installing ${missing[*]}"
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

build() {
  local preset=$1
  say "Building (preset $preset)"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
}

case "${1:-}" in
  demo)
    install_missing
    build release
    out=results/pystdlib-lm
    say "kvreplay analyze data/samples/pystdlib-lm --out $out"
    build/release/bin/kvreplay analyze data/samples/pystdlib-lm --out "$out" --force
    say "kvreplay verify data/samples/pystdlib-lm"
    build/release/bin/kvreplay verify data/samples/pystdlib-lm
    say "Results: $PWD/$out"
    echo "  agreement.csv   how well every score follows every exact error and oracle, per head"
    echo "  evictions.csv   what every policy loses at every budget, exactly, per head, layer and model"
    echo "  budgets.csv     one budget shared between all heads, five ways, and what each loses"
    echo "  channels.csv    how key channels interact, which every method prunes, and what it costs, exactly"
    echo "  heads.csv       what every metric sums to, per head"
    echo "  layer_*/tokens  every metric of every token, .npy"
    echo "  maps            the same figures as layers x heads, .npy"
    say "To look at them: build/release/bin/kvreplay view data/samples/pystdlib-lm"
    ;;
  test)
    install_missing xvfb libxtst-dev
    build release
    say "Testing"
    ctest --preset release -j "$(nproc)"
    ;;
  build)
    install_missing
    build release
    ;;
  claims)
    install_missing python3
    build release
    python3 tests/claims/claims.py --program build/release/bin/kvreplay "${@:2}" data/samples/pystdlib-lm
    ;;
  bench)
    install_missing
    build release
    tests/bench/run.sh build/release/bin
    ;;
  *)
    sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'
    exit 2
    ;;
esac
