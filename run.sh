#!/usr/bin/env bash
# One command from a fresh checkout to a result. See `./run.sh --help`.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
venv=$root/.venv

usage() {
    cat <<'TEXT'
./run.sh [FLAGS]               optimise a kernel; FLAGS go to `agentctl run`; without any: --problem silu
./run.sh [USER@]HOST... [FLAGS]
                               the same, with kernels run on these hosts, over SSH (see docs/hosts.md)
./run.sh --resume              carry on with the last run (further FLAGS go to `agentctl resume`)
./run.sh test [--all] [--require-all] [ARGS]
                               lint, format, types, architecture and quick tests: ten minutes on two cores.
                               With --all slow tests run too, and properties with all their examples.
                               With --require-all a test that cannot run here fails instead of being skipped.
                               ARGS go to pytest; what they choose by node id, -k or -m runs even if it is slow
./run.sh --help                this text

The first call makes .venv and installs the locked dependencies. $PYTHON chooses the interpreter.
TEXT
}

fail() {
    echo "run.sh: $1" >&2
    exit "${2:-1}"
}

# Newest version that the locks are tested with first, then whatever python3 is.
find_python() {
    local name found='' wanted=(python3.13 python3.12 python3.11 python3)
    if [ -n "${PYTHON:-}" ]; then wanted=("$PYTHON"); fi
    for name in "${wanted[@]}"; do
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        found=$name
        if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    if [ -n "$found" ]; then
        fail "$found has no venv module; install it (Debian and Ubuntu: apt-get install python3-venv)"
    elif [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is not a Python 3.11 or newer"
    fi
    fail "no Python 3.11 or newer found (looked for: ${wanted[*]}); install one, or set PYTHON"
}

# A checkout that moved, or whose Python went away, needs a new one: scripts in it name absolute paths.
make_venv() {
    local python
    if "$venv/bin/python" -c 'import pip' >/dev/null 2>&1 &&
        { [ ! -f "$venv/.root" ] || [ "$(cat "$venv/.root")" = "$root" ]; }; then
        return
    fi
    python=$(find_python)
    echo "Making .venv with $("$python" --version) ..." >&2
    "$python" -m venv --clear "$venv" 2>&1 | show_progress || fail "could not make $venv"
    printf '%s\n' "$root" >"$venv/.root"
}

# Makes everything ready that a command needs, and nothing twice.
install() {
    install_lock "$1"
    compile_bytecode
}

# Jails read bytecode and never write any: what they alone import they would compile for each kernel again.
# A checkout that nobody may write to works without.
compile_bytecode() {
    "$venv/bin/python" -m compileall -q "$root"/*/ >/dev/null 2>&1 || true
}

# Installs a lock and the project, unless exactly this was done before.
install_lock() {
    local lock=$1 stamp digest
    stamp=$venv/.installed-$lock
    make_venv
    digest=$(cat -- "$root/$lock" "$root/pyproject.toml" | cksum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ]; then return; fi
    echo "Installing $lock into .venv (about a minute, once) ..." >&2
    pip_install --require-hashes -r "$root/$lock" &&
        echo "Installing nki-kernel-agent itself ..." >&2 &&
        pip_install --no-deps --no-build-isolation -e "$root" ||
        fail "installation failed; the lines above say why"
    printf '%s\n' "$digest" >"$stamp"
    echo "Installed; the first start takes a few seconds ..." >&2
}

pip_install() {
    PYTHONUNBUFFERED=1 "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" 2>&1 |
        show_progress
}

# Passes lines on; while none comes, as when pip unpacks, it says every two seconds how long that takes.
show_progress() {
    local line status began=$SECONDS
    while true; do
        status=0
        IFS= read -r -t 2 line || status=$?
        if [ "$status" -eq 0 ]; then
            printf '%s\n' "$line"
            began=$SECONDS
        elif [ "$status" -gt 128 ]; then
            printf '%s  ... %s s\n' "$line" "$((SECONDS - began))"
        else
            printf '%s' "$line"
            return
        fi
    done >&2
}

# A word is taken for a host when it names a user, a port or a domain, or when it is one that this machine
# knows: else a mistyped command would be looked for in the network.
is_host() {
    local allowed='^[][A-Za-z0-9_.@:%-]+$' config=${HOME:-/}/.ssh/config
    [[ $1 =~ $allowed ]] || return 1
    [[ $1 == *[@:.]* ]] && return 0
    grep -qisE "^[[:space:]]*Host[[:space:]](.*[[:space:]])?$1([[:space:]]|$)" "$config" && return 0
    getent hosts -- "$1" >/dev/null 2>&1
}

# Without arguments: a problem that shows something within a minute of the installation.
first_problem=silu

failed=()

# check NAME COMMAND...: runs one check under its heading and remembers whether it failed.
check() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
}

flaky=$venv/.flaky
most_flaky=3

# A test that fails beside others is tried once more alone: what then passes is named and counted as flaky, and
# fails nothing by itself, as a machine with other work is no defect of the project's; a defect fails twice.
run_tests() {
    local status=0
    : >"$flaky"
    python -m pytest -n 2 --dist worksteal "$@" || status=$?
    if [ "$status" -ne 1 ]; then return "$status"; fi
    status=0
    printf '\n== tests that failed, once more, one at a time\n'
    python -m pytest --last-failed --last-failed-no-failures none -rA --show-capture=no --tb=short "$@" |
        tee "$venv/.retried" || status=$?
    sed -n 's/^PASSED //p' "$venv/.retried" >"$flaky"
    return "$status"
}

# More than a few flaky tests fail the run: then either the tests measure the machine, or a defect hides there.
count_flaky() {
    if [ ! -s "$flaky" ]; then return; fi
    printf '\n== tests that failed first and passed alone (named in %s)\n' "${flaky#"$root/"}"
    cat "$flaky"
    if [ "$(wc -l <"$flaky")" -gt "$most_flaky" ]; then
        echo "more than $most_flaky flaky tests fail the run"
        failed+=(flaky)
    fi
}

run_checks() {
    local types
    install requirements-dev.lock
    cd -- "$root"
    export PATH=$venv/bin:$PATH
    check lint ruff check .
    check format ruff format --check .
    check architecture lint-imports
    mypy >"$venv/.types" 2>&1 & # takes a core for a while: beside the tests it costs little
    types=$!
    check tests run_tests "$@"
    printf '\n== types\n'
    wait "$types" || failed+=(types)
    cat "$venv/.types"
    count_flaky
    printf '\n'
    if [ ${#failed[@]} -gt 0 ]; then fail "failed: ${failed[*]}"; fi
    echo "run.sh: all checks passed"
}

case ${1:-} in
    -h | --help) usage ;;
    test)
        shift
        run_checks "$@"
        ;;
    --resume)
        shift
        install requirements.lock
        exec "$venv/bin/agentctl" resume --last "$@"
        ;;
    '' | -*)
        install requirements.lock
        if [ $# -eq 0 ] && "$venv/bin/agentctl" config show 2>/dev/null | grep -q '^problem = .*# default$'; then
            set -- --problem "$first_problem"
        fi
        exec "$venv/bin/agentctl" run "$@"
        ;;
    *)
        hosts=()
        while [ $# -gt 0 ] && [[ $1 != -* ]]; do
            if [[ $1 == *.py ]]; then
                [ -f "$1" ] || fail "$1: no such file" 2
                named=' --problem NAME'
                if [ -f "$(dirname -- "$1")/problem.toml" ]; then named=''; fi
                fail "$1 is no host; to start from it as a kernel: ./run.sh --kernel $1$named" 2
            fi
            if [ -d "$root/seeds/problems/$1" ] || [ -f "$1/problem.toml" ]; then
                fail "$1 is a problem: ./run.sh --problem $1" 2
            fi
            if [[ $1 == */* ]]; then
                [ -d "$1" ] || fail "$1: no such folder" 2
                fail "$1 has no problem.toml; a folder with a problem: .venv/bin/agentctl problems new NAME" 2
            fi
            is_host "$1" || fail "neither a command nor a host, [user@]host[:port]: $1 (see ./run.sh --help)" 2
            hosts+=(--host "$1")
            shift
        done
        install requirements.lock
        exec "$venv/bin/agentctl" run "${hosts[@]}" "$@"
        ;;
esac
