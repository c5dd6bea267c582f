# Sourced by the other scripts: finds Python 3.11 or newer, and makes a virtual environment with it.

# Print the path of a Python >= 3.11. PYTHON names one to use.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    fail "no Python 3.11 or newer found (looked for python3, python3.11 and later)" \
        "install one, for example: apt install python3 python3-venv, or set PYTHON=PATH"
}

# fail MESSAGE NEXT_STEP: two lines on stderr, then exit 4.
fail() {
    printf 'error: %s\nnext:  %s\n' "$1" "$2" >&2
    exit 4
}

# make_venv DIR STAMP [PACKAGE...]: have a virtual environment in DIR with openjev (from this checkout, editable)
# and the packages in it. STAMP names what is installed; nothing is done when DIR already holds that. What is
# installed with "dev" also serves for "run".
make_venv() {
    local dir=$1 stamp=$2 root python log present
    shift 2
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    stamp="$stamp $(cksum <"$root/pyproject.toml") $root"
    present=$(cat "$dir/.openjev-stamp" 2>/dev/null || true)
    if [ -x "$dir/bin/openjev" ] && { [ "$present" = "$stamp" ] || [ "$present" = "dev ${stamp#run }" ]; }; then
        return 0
    fi
    python=$(find_python)
    log=$(mktemp "${TMPDIR:-/tmp}/openjev-venv.XXXXXX")
    echo "installing openjev into $dir" >&2
    if [ ! -x "$dir/bin/python" ] || ! "$dir/bin/python" -c '' 2>/dev/null; then
        if ! { command -v uv >/dev/null 2>&1 && uv venv --quiet --python "$python" "$dir" >"$log" 2>&1; } &&
            ! "$python" -m venv "$dir" >"$log" 2>&1; then
            fail "no virtual environment could be made in $dir: $(tail -n 1 "$log")" \
                "install the venv module, for example: apt install python3-venv (or install uv)"
        fi
    fi
    if command -v uv >/dev/null 2>&1; then
        (cd "$root" && uv pip install --quiet --python "$dir/bin/python" -e . "$@" >"$log" 2>&1)
    else
        # The pip an old Python brings knows no dependency groups.
        { "$dir/bin/python" -m pip --version || "$dir/bin/python" -m ensurepip; } >"$log" 2>&1 &&
            "$dir/bin/python" -m pip install --quiet --upgrade 'pip>=25.1' >>"$log" 2>&1 &&
            (cd "$root" && "$dir/bin/python" -m pip install --quiet -e . "$@" >>"$log" 2>&1)
    fi || fail "openjev could not be installed into $dir: $(grep -iE 'error|no matching' "$log" | tail -n 1)" \
        "check the network and run this again; the whole output is in $log"
    rm -f "$log"
    printf '%s\n' "$stamp" >"$dir/.openjev-stamp"
}
