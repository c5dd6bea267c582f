#!/usr/bin/env bash
# Build, prove and cache openjev's llama-server; prints the path of the binary. All the work is in
# build_llama.py: this only finds a Python for it. See scripts/build-llama.sh --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"

python=$(find_python)
exec "$python" "$here/build_llama.py" "$@"
