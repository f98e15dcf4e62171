#!/usr/bin/env bash
@header@
# Arguments go to the training program. SBATCH_OPTIONS: further options of sbatch, e.g. "--test-only --time=2:00:00".
# CONTAINER_MOUNTS: what a container sees beside this folder, e.g. /data:/data,/opt/code:/opt/code.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
@read_hosts@@required@cd "$here"
rm -f nodes.[0-9]*.txt
next=0
for run in @runs@; do  # component:hosts, in node-rank order
  printf '%s\n' "${names[@]:next:${run#*:}}" >> "nodes.${run%:*}.txt"
  next=$((next + ${run#*:}))
done
read -r -a options <<< "${SBATCH_OPTIONS:-}"
PLAN_DIR="$here" exec sbatch "${options[@]}" slurm.sbatch "$@"
