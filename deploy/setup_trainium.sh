#!/usr/bin/env bash
# Prepares a Trainium host for nki-kernel-agent and says what it found there. See --help.
# It reads nothing from its standard input, so that `ssh HOST 'bash -s' < setup_trainium.sh` works.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<'TEXT'
setup_trainium.sh [--check | --plan] [--json] [--workdir DIR] [--python PYTHON]

Makes the folder that nki-kernel-agent uses on this host and, where there is no Neuron SDK, an interpreter
that the simulator runs on. Says which SDK, NKI, profiler and NeuronCores there are, and what is missing, each
with its remedy. Running it again changes nothing. Status 0: kernels can be run here; 1: they cannot.

  --check        change nothing, only look
  --plan         change nothing, print the commands that would be run
  --json         write one JSON object
  --workdir DIR  relative to your home; default .cache/nki-kernel-agent
  --python FILE  the SDK's interpreter; default: that of /opt/aws_neuronx_venv*, then python3
TEXT
}

mode=setup json=false jails=true workdir=.cache/nki-kernel-agent python='' venv_python=''
while [ $# -gt 0 ]; do
    case $1 in
        --check | --plan) mode=${1#--} ;;
        --json) json=true ;;
        --workdir | --python)
            [ $# -gt 1 ] || { echo "setup_trainium.sh: $1 needs a value" >&2; exit 2; }
            printf -v "${1#--}" %s "$2"
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        *) echo "setup_trainium.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done
cd -- "$HOME"

names=() values=() missing=() remedies=() commands=() problem=''
readonly WANTED_DISK_GIB=10 BOTH='__import__("numpy") and __import__("ml_dtypes")'
readonly SET_UP='run this script without --check' PACKAGES='numpy>=2,<3 ml_dtypes>=0.5,<1'

found() { # found NAME VALUE: what there is
    names+=("$1") values+=("$2")
}

lacking() { # lacking WHAT REMEDY: what there is not; a remedy is told once
    local index
    for index in "${!remedies[@]}"; do
        if [ "${remedies[index]}" = "$2" ]; then
            missing[index]+="; $1"
            return
        fi
    done
    missing+=("$1") remedies+=("$2")
}

act() { # act COMMAND...: do it when setting up; remember it in any case
    local text
    text=$(printf '%q ' "$@")
    commands+=("${text% }")
    if [ "$mode" = setup ]; then "$@" </dev/null >/dev/null 2>"$errors" || problem=$(tail -n 3 "$errors"); fi
}

has() { # has PYTHON EXPRESSION: whether it is true there
    [ -n "$1" ] && "$1" -I -c "import sys; sys.exit(not ($2))" </dev/null >/dev/null 2>&1
}

version_of() { # version_of PYTHON PACKAGE: its version, or nothing
    "$1" -I -c "from importlib import metadata; print(metadata.version('$2'))" </dev/null 2>/dev/null || true
}

# --- the interpreter ---------------------------------------------------------------------------------

sdk_python() { # the interpreter of an SDK, or nothing
    local one
    for one in /opt/aws_neuronx_venv*/bin/python; do
        if has "$one" 'sys.version_info >= (3, 9)'; then echo "$one"; return; fi
    done
}

make_venv() { # where there is no SDK, the simulator needs NumPy and Python 3.11
    local base=$1
    act "$base" -m venv "$workdir/venv"
    # shellcheck disable=SC2086  # two words
    [ -z "$problem" ] && act "$workdir/venv/bin/python" -m pip install -qq --no-input \
        --disable-pip-version-check --root-user-action=ignore $PACKAGES
    if [ -n "$problem" ]; then
        lacking "no interpreter for the simulator could be made ($problem)" \
            'install python3-venv, see that pip can reach its index, and set up again'
    fi
}

choose_python() {
    local base
    venv_python=$workdir/venv/bin/python
    if [ -n "$python" ]; then
        has "$python" 'sys.version_info >= (3, 9)' && return
        lacking "$python is no Python 3.9 or newer" 'name another interpreter with --python'
        python=''
        return
    fi
    python=$(sdk_python)
    [ -z "$python" ] || return 0
    if has "$venv_python" 'sys.version_info >= (3, 11)' && has "$venv_python" "$BOTH"; then
        python=$venv_python
        return
    fi
    base=$(command -v python3 || true)
    if has "$base" 'sys.version_info >= (3, 11)'; then
        python=$base
        has "$base" "$BOTH" && return
        if [ "$mode" = check ]; then
            python=''
            lacking "no Neuron SDK, and $base has not the packages that the simulator needs" "$SET_UP"
            return
        fi
        make_venv "$base"
        if [ -x "$venv_python" ] && [ -z "$problem" ]; then python=$venv_python; fi
    else
        lacking 'no Neuron SDK, and no Python 3.11 that the simulator could run on' \
            'install Python 3.11 or newer, or the SDK'
    fi
}

# --- what there is -----------------------------------------------------------------------------------

tool() { # tool NAME: its path, also where the SDK's folder is not on PATH
    command -v "$1" 2>/dev/null || { [ -x "/opt/aws/neuron/bin/$1" ] && echo "/opt/aws/neuron/bin/$1"; } || true
}

neuron_cores() {
    local count=0 one
    for one in /sys/devices/virtual/neuron_device/neuron[0-9]*/neuron_core[0-9]*; do
        [ -e "$one" ] && count=$((count + 1))
    done
    echo "$count"
}

look() {
    local cores free profiler runtime version product=/sys/devices/virtual/dmi/id/product_name
    found 'instance type' "$( (cat "$product" 2>/dev/null || echo unknown) | tr -d '\n')"
    cores=$(neuron_cores)
    found NeuronCores "$cores (physical)"
    found python "${python:-none} ($([ -z "$python" ] || "$python" -I -c 'import platform; print(platform.python_version())' </dev/null))"
    version=''
    for package in neuronx-cc nki; do
        [ -z "$python" ] || version=$(version_of "$python" "$package")
        found "$package" "${version:-none}"
    done
    profiler=$(tool neuron-explorer)
    profiler=${profiler:-$(tool neuron-profile)}
    found profiler "${profiler:-none}"
    runtime=$(find_runtime)
    found runtime "${runtime:-none}"
    if [ -n "$python" ] && [ -n "$(version_of "$python" neuronx-cc)" ]; then
        found 'tried on a device' 'no: how this program calls the SDK follows its documentation, and met only a stand-in'
    fi
    found jail "$(command -v bwrap || command -v unshare || echo none)"
    free=$(df -Pk -- "$([ -d "$workdir" ] && echo "$workdir" || echo .)" | awk 'NR == 2 {print int($4 / 1048576)}')
    found 'free disk' "$free GiB for $PWD/$workdir"
    judge "$cores" "$free" "$profiler" "$runtime"
}

find_runtime() { # what loads and times kernels: nrtpy, here or in an environment of its own, or spike
    local tag folder
    [ -n "$python" ] || return 0
    if has "$python" '__import__("importlib.util").util.find_spec("nrtpy")'; then echo nrtpy; return; fi
    tag=$("$python" -I -c 'import sys; print("python%d.%d" % sys.version_info[:2])' </dev/null)
    for folder in "$HOME/nrtpy_venv" "$HOME/.cache/nki-kernel-agent/nrtpy" /opt/aws_neuronx_venv*; do
        [ -d "$folder/lib/$tag/site-packages/nrtpy" ] && { echo "nrtpy in $folder"; return; }
    done
    if has "$python" '__import__("importlib.util").util.find_spec("spike")'; then echo spike; fi
}

judge() { # judge CORES FREE PROFILER RUNTIME: what is missing, each once
    local sdk=''
    if [ -n "$python" ] && ! has "$python" 'sys.version_info >= (3, 10)'; then
        lacking "$python is older than Python 3.10, which jails need: no kernel is compiled with it" \
            'name a newer interpreter with --python, or install an SDK for one'
        jails=false
    fi
    [ -z "$python" ] || sdk=$(version_of "$python" neuronx-cc)
    if [ -z "$sdk" ]; then
        lacking 'no Neuron SDK: the simulator stands in for the device, and latencies are predicted' \
            'use a Neuron Deep Learning AMI, or install the SDK: https://awsdocs-neuron.readthedocs-hosted.com'
    fi
    if [ "$1" -eq 0 ]; then
        lacking 'no NeuronCores: this is no Trainium instance, or its driver is not loaded' \
            'on a Trainium instance: sudo modprobe neuron'
    elif [ -n "$sdk" ] && [ -z "$4" ]; then
        # nrtpy and nki cannot be installed in one environment; its version of Python must be the SDK's.
        lacking 'no runtime: neither nrtpy (SDK 2.32 and later) nor spike is installed' \
            "$python -m venv ~/nrtpy_venv && ~/nrtpy_venv/bin/pip install nrtpy --extra-index-url=https://pip.repos.neuron.amazonaws.com"
    fi
    if [ "$1" -ne 0 ] && [ -z "$3" ]; then
        lacking 'no profiler: kernels are timed, and nothing says where their time goes' \
            'sudo apt-get install aws-neuronx-tools'
    fi
    if ! command -v bwrap >/dev/null; then
        lacking 'no bubblewrap: kernels that models wrote are compiled in a weaker jail, or not at all' \
            'sudo apt-get install bubblewrap'
    fi
    if [ "$2" -lt "$WANTED_DISK_GIB" ]; then
        lacking "only $2 GiB of disk are free" "free $WANTED_DISK_GIB GiB, or choose another --workdir"
    fi
    if [ ! -d "$workdir" ]; then
        [ "$mode" != check ] || lacking "not set up: there is no $PWD/$workdir" "$SET_UP"
    elif [ ! -w "$workdir" ]; then
        lacking "$PWD/$workdir cannot be written" "sudo chown $(id -un) $PWD/$workdir"
    fi
}

# --- telling -----------------------------------------------------------------------------------------

quote() { # quote TEXT: as a JSON string
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\n'/; }
    printf '"%s"' "$(printf %s "$text" | tr -d '\000-\037')"
}

listed() { # listed TEXT...: as a JSON list of strings
    local one comma=''
    printf '['
    for one in "$@"; do printf '%s%s' "$comma" "$(quote "$one")"; comma=', '; done
    printf ']'
}

tell_json() {
    local index
    printf '{"usable": %s, "found": {' "$usable"
    for index in "${!names[@]}"; do
        printf '%s%s: %s' "$([ "$index" -eq 0 ] || echo ', ')" "$(quote "${names[index]}")" "$(quote "${values[index]}")"
    done
    printf '}, "missing": %s, "remedies": %s, "commands": %s}\n' "$(listed "${missing[@]+"${missing[@]}"}")" \
        "$(listed "${remedies[@]+"${remedies[@]}"}")" "$(listed "${commands[@]+"${commands[@]}"}")"
}

tell() {
    local index
    for index in "${!names[@]}"; do printf '%-14s %s\n' "${names[index]}" "${values[index]}"; done
    for index in "${!missing[@]}"; do printf '%s\n  -> %s\n' "${missing[index]}" "${remedies[index]}"; done
    if $usable; then echo 'kernels can be run here'; else echo 'kernels cannot be run here'; fi
}

errors=/dev/null
if [ "$mode" = setup ]; then
    errors=$(mktemp)
    trap 'rm -f -- "$errors"' EXIT
fi
[ -d "$workdir" ] || act mkdir -p -m 700 -- "$workdir"
[ -z "$problem" ] || lacking "the folder $PWD/$workdir cannot be made ($problem)" 'choose another --workdir'
choose_python
if [ "$mode" = plan ] && ! $json; then
    printf '%s\n' "${commands[@]+"${commands[@]}"}"
    exit 0
fi
look
usable=true
if [ -z "$python" ] || [ -n "$problem" ] || ! $jails; then usable=false; fi
if $json; then tell_json; else tell; fi
$usable
