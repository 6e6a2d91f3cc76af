# shellcheck shell=bash
# Sourced by scripts/bench after environment.sh. `ensure_peers` makes .venv-peers hold what Stoker is compared with, which
# is never among its own dependencies. BENCH_PEERS_PYTHON names another interpreter that has all of it already.

PEERS_VENV=$ROOT/.venv-peers
PEERS_LISTS=$ROOT/tests/bench/peers

ensure_peers() {
  local stamp
  if [[ -n ${BENCH_PEERS_PYTHON:-} ]]; then return; fi
  stamp=$(_peers_stamp)
  if [[ -f $PEERS_VENV/.installed && $(<"$PEERS_VENV/.installed") == "$stamp" ]]; then return; fi
  echo "Installing what Stoker is compared with into $PEERS_VENV (once) …" >&2
  "$(_find_python)" -m venv --clear "$PEERS_VENV"
  "$PEERS_VENV/bin/python" -m pip --disable-pip-version-check install --quiet --requirement "$PEERS_LISTS/requirements.txt" \
    --constraint "$PEERS_LISTS/constraints.txt" || _fail "pip could not install the peers; see its messages above"
  # It asks for a Celery before the one that is compared, and runs with that.
  "$PEERS_VENV/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps celery-batches \
    --constraint "$PEERS_LISTS/constraints.txt" || _fail "pip could not install celery-batches; see its messages above"
  echo "$stamp" >"$PEERS_VENV/.installed"
}

# An environment moved to another folder is not installed there.
_peers_stamp() {
  { echo "$ROOT"; cat "$PEERS_LISTS/requirements.txt" "$PEERS_LISTS/constraints.txt"; } | cksum
}
