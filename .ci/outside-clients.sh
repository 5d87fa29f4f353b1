#!/usr/bin/env bash
# Runs clients and tests of other people against a server of ours; see docs/outside-tests.md. Installs what it needs.
# Usage: .ci/outside-clients.sh [path of the hedgerow binary]
# PORT is the first of six ports; some tests of redis-py want it to be 6379, which it is unless set.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
binary=${1:-$root/target/release/hedgerow}
port=${PORT:-6379}
work=$(mktemp -d)
servers=()
finish() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; wait "$server" || true; done
    rm -rf "$work"
}
trap finish EXIT

# One that is there may be of an earlier state.
[ $# -gt 0 ] || cargo build --release -p hedgerow-tool
if ! command -v redis-cli >/dev/null || ! command -v redis-benchmark >/dev/null; then
    apt-get update -q && apt-get install -yq redis-tools
fi

serve() { # port, store
    "$binary" serve --store "${2:-tiered:$work/data-$1}" --listen "127.0.0.1:$1" >"$work/log-$1" &
    servers+=($!)
    wait_for "$1"
}
serve_pool() { # port
    "$binary" pool up --listen 127.0.0.1:0 --serve "127.0.0.1:$1" >"$work/log-$1" &
    servers+=($!)
    wait_for "$1"
}
wait_for() { # port
    for _ in $(seq 100); do
        redis-cli -p "$1" ping >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "no server answers at port $1" >&2
    exit 1
}
serve "$port"
cli() { redis-cli -p "$port" "$@"; }
expect() { # wanted, command...
    local wanted=$1 found
    shift
    found=$(cli "$@")
    [ "$found" = "$wanted" ] || { echo "redis-cli $*: '$found' instead of '$wanted'" >&2; exit 1; }
}

echo "== redis-cli"
expect PONG ping
expect OK set greeting hello
expect hello get greeting
expect 2 hset users:1 name Ada age 36
expect 37 hincrby users:1 age 1
expect Ada -3 hget users:1 name
[ "$(printf 'SET piped:%d v\n' $(seq 1000) | cli --pipe | grep -c 'errors: 0, replies: 1000')" = 1 ]
cli command docs hr.scan | grep -q 'in order'
# What an interactive redis-cli does when it starts and when a person asks for help.
python3 .ci/redis_cli_session.py "$port"

echo "== redis-benchmark"
for pipeline in 1 16; do
    redis-benchmark -p "$port" -t set,get,hset -n 100000 -P "$pipeline" -q | tr '\r' '\n' | grep 'requests per second'
done
cli flushall >/dev/null

echo "== go-redis"
if command -v go >/dev/null; then
    (cd .ci/go-redis && go run . "127.0.0.1:$port")
else
    echo "skipped: no go"
fi

echo "== redis-py"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q pytest pytest-asyncio pytest-timeout packaging numpy xxhash coverage redis-entraid==1.2.1 opentelemetry-api
(cd "$work" && venv/bin/pip download -q --no-binary :all: --no-deps redis==8.1.0 && tar xzf redis-8.1.0.tar.gz)
cd "$work/redis-8.1.0"
selection=$root/.ci/redis_py_selection.py
export REDIS_PY_USED=$work/used
redis_py() { # sync, asyncio, memory, devices or pool, port
    local files
    files=$(python3 "$selection" files . "$1")
    # shellcheck disable=SC2086 -- a list of names without blanks
    REDIS_PY_KIND=$1 PYTHONPATH=$root/.ci timeout 600 "$work/venv/bin/python" -m pytest -q -p redis_py_selection -p no:cacheprovider \
        -W ignore --timeout 30 --redis-url="redis://127.0.0.1:$2/0" $files >"$work/redis-py-$1" 2>&1
}
# Each part has a server of its own, whose password and clients it may change; all spend most of their time asleep.
serve $((port + 1))
serve $((port + 2))
serve $((port + 3)) memory:
serve $((port + 4)) "kvssd:$work/a,$work/b,$work/c?size=256mb"
serve_pool $((port + 5))
redis_py asyncio $((port + 2)) &
asyncio=$!
redis_py memory $((port + 3)) &
memory=$!
redis_py devices $((port + 4)) &
devices=$!
redis_py pool $((port + 5)) &
pool=$!
status=0
redis_py sync $((port + 1)) || status=$?
wait "$asyncio" || status=$?
wait "$memory" || status=$?
wait "$devices" || status=$?
wait "$pool" || status=$?
for part in sync asyncio memory devices pool; do
    # All of it if something failed, else what was run and left out.
    if [ "$status" = 0 ]; then echo "-- $part"; grep -E '^left out|^[0-9]+ passed' "$work/redis-py-$part"; else cat "$work/redis-py-$part"; fi
done
[ "$status" = 0 ]
python3 "$selection" check . "$REDIS_PY_USED"

for i in 0 1 2 3 4; do
    redis-cli -p $((port + i)) shutdown
    wait "${servers[$i]}"
    # What is in memory ends with its server.
    if [ "$i" = 3 ]; then said='hedgerow: stopped$'; else said='everything is persisted'; fi
    grep -q "$said" "$work/log-$((port + i))"
done
kill "${servers[5]}"
wait "${servers[5]}"
grep -q 'the pool has ended' "$work/log-$((port + 5))"
servers=()
echo "outside clients: ok"
