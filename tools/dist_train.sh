#!/usr/bin/env bash
# Train with several processes on this machine, or on several machines:
#   tools/dist_train.sh CONFIG PROCESSES [options of tools/train.py]
# Several machines: run it on each with NNODES, NODE_RANK (0, 1, ...), MASTER_ADDR (of machine 0) and PORT set.
set -euo pipefail
if [ $# -lt 2 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$2" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$1" --launcher pytorch "${@:3}"
