#!/usr/bin/env bash
# Evaluate with several processes on this machine, or on several machines:
#   tools/dist_test.sh CONFIG CHECKPOINT PROCESSES [options of tools/test.py]
# Several machines: run it on each with NNODES, NODE_RANK (0, 1, ...), MASTER_ADDR (of machine 0) and PORT set.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$3" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/test.py" "$1" "$2" --launcher pytorch "${@:4}"
