# shellcheck shell=bash
# Sourced by ./test, ./quickstart and .ci/run: what the machine needs, by Debian package name.
#
# need_packages NAME...   installs those that are missing; asks the package manager for nothing when all are there.
# need_models WHAT...     fetches models and texts; returns 1, having said so, when they can't be had. Needs the packages
#                         that fetch_packages WHAT... prints.

say() { printf '%s\n' "$*" >&2; }

# Is what the package is wanted for there? By what it provides first, so that another distribution's package or an own
# build counts too.
has_package() {
    case "$1" in
    gcc) command -v cc >/dev/null || command -v gcc >/dev/null ;;
    libc6-dev) dpkg_installed libc6-dev || [ -e /usr/include/stdio.h ] ;;
    meson) command -v meson >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    pkg-config) command -v pkg-config >/dev/null ;;
    clang) command -v clang >/dev/null ;;
    clang-format) command -v clang-format >/dev/null || command -v clang-format-14 >/dev/null ;;
    git) command -v git >/dev/null ;;
    python3) command -v python3 >/dev/null ;;
    python3-venv) python3 -m pip --version >/dev/null 2>&1 || python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] || dpkg_installed ca-certificates ;;
    python3-numpy) python3 -c 'import numpy' 2>/dev/null || /usr/bin/python3 -c 'import numpy' 2>/dev/null ;;
    libcmocka-dev) pkg-config --exists cmocka 2>/dev/null ;;
    libpcre2-dev) pkg-config --exists libpcre2-8 2>/dev/null ;;
    libutf8proc-dev) pkg-config --exists libutf8proc 2>/dev/null ;;
    libjansson-dev) pkg-config --exists jansson 2>/dev/null ;;
    liblapacke-dev) pkg-config --exists lapacke 2>/dev/null ;;
    libopenblas-serial-dev) pkg-config --exists openblas 2>/dev/null ;;
    libxxhash-dev) pkg-config --exists libxxhash 2>/dev/null ;;
    gnuplot-nox) command -v gnuplot >/dev/null ;;
    libedit-dev) pkg-config --exists libedit 2>/dev/null ;;
    *) dpkg_installed "$1" ;;
    esac
}

dpkg_installed() { [ "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null)" = "install ok installed" ]; }

need_packages() {
    local missing=() name
    for name in "$@"; do
        has_package "$name" || missing+=("$name")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    local root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null && root=(sudo)
    fi
    if ! command -v apt-get >/dev/null || { [ "$(id -u)" != 0 ] && [ "${#root[@]}" = 0 ]; } ||
        { [ "${#root[@]}" != 0 ] && [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
        say "Missing packages. As root, on Debian or Ubuntu:"
        say "  apt-get install ${missing[*]}"
        return 1
    fi
    say "installing ${missing[*]} ..."
    local log
    log=$(mktemp)
    local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q)
    if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
        # A new machine has no package lists yet, an old one stale ones.
        if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
            tail -n 15 "$log" >&2
            rm -f "$log"
            say "Installing failed; as root: apt-get update && apt-get install ${missing[*]}"
            return 1
        fi
    fi
    rm -f "$log"
}

# shellcheck disable=SC2034
build_packages=(gcc libc6-dev meson ninja-build pkg-config python3 libpcre2-dev libutf8proc-dev libjansson-dev libxxhash-dev
    liblapacke-dev libopenblas-serial-dev libedit-dev)

# What fetching needs, when there is something to fetch.
fetch_packages() {
    have_models "$@" || echo ca-certificates python3-venv
}

have_models() { command -v python3 >/dev/null && python3 tools/fetch-models --check --quiet "$@"; }

need_models() { have_models "$@" || python3 tools/fetch-models "$@"; }

# configure FOLDER OPTION...: sets up a build folder once; later runs leave the work to ninja.
configure() {
    local folder=$1 log
    shift
    [ -f "$folder/build.ninja" ] && return 0
    log=$(mktemp)
    rm -rf "$folder"
    if ! meson setup "$folder" "$@" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}
