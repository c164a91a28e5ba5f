# Shared by the scripts in this folder (sourced, not run): finds Python and a compiler, keeps an environment up to date.

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off

fail() {
    echo "error: $*" >&2
    exit 1
}

# Print the first Python in 3.10 .. 3.13 that can make virtual environments; $PYTHON overrides the search.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
            >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    fail "needs Python 3.10 to 3.13 with the venv module (set PYTHON=/path/to/python to choose one)"
}

find_compiler() {
    local candidate
    for candidate in ${CXX:-c++ g++ clang++}; do
        if command -v "$candidate" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# Print a hash of everything that an installation is made from: name of the environment, project file, native sources,
# and, when asked for with "package", the Python sources too (an editable installation reads those in place).
source_hash() {
    local python=$1 what=$2
    "$python" - "$what" <<'PYTHON'
import hashlib, pathlib, sys
digest = hashlib.sha256(f"{sys.version} {sys.argv[1]}".encode())
patterns = ["pyproject.toml", "CMakeLists.txt", "csrc/**/*", "scripts/environment.sh"]
if sys.argv[1] == "package":
    patterns.append("octavo/**/*.py")
for path in sorted(p for pattern in patterns for p in pathlib.Path().glob(pattern) if p.is_file()):
    digest.update(str(path).encode() + b"\0" + path.read_bytes())
print(digest.hexdigest())
PYTHON
}

# ensure_environment FOLDER WHAT INSTALL_FUNCTION: make the environment, and install unless the stamp says it is current.
ensure_environment() {
    local folder=$1 what=$2 install=$3 python stamp
    python=$(find_python)
    if [ ! -x "$folder/bin/python" ]; then
        "$python" -m venv "$folder"
    fi
    stamp=$(source_hash "$folder/bin/python" "$what")
    if [ "$(cat "$folder/.octavo-stamp" 2>/dev/null || true)" = "$stamp" ]; then
        echo "$folder is up to date"
        return
    fi
    rm -f "$folder/.octavo-stamp"
    "$install"
    echo "$stamp" >"$folder/.octavo-stamp"
}
