#!/usr/bin/env bash
# Train on a Slurm cluster, on one machine or several:
#   [GPUS=16 GPUS_PER_NODE=8] tools/slurm_train.sh PARTITION JOB_NAME CONFIG [options of tools/train.py]
# GPUS counts all machines' (GPUS=16 GPUS_PER_NODE=8: two machines). GPUS_PER_NODE=0 trains on CPUs, GPUS processes of
# TASKS_PER_NODE a machine. More options for srun go into SRUN_ARGS.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
fi
gpus=${GPUS:-8}
gpus_per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
tasks_per_node=${TASKS_PER_NODE:-$((gpus_per_node > 0 ? gpus_per_node : gpus))}
resources=()
if [ "$gpus_per_node" -gt 0 ]; then
    resources=(--gres="gpu:$gpus_per_node")
fi
# shellcheck disable=SC2086  # SRUN_ARGS is a list of words
exec srun -p "$1" --job-name="$2" "${resources[@]}" --ntasks="$gpus" --ntasks-per-node="$tasks_per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$3" --launcher slurm "${@:4}"
