#!/usr/bin/env bash
@header@
# Settings: HOSTS_FILE (default: hosts.txt beside this script), NODE_NAME (default: this host's name), MASTER_PORT (@port@),
# TORCHRUN (torchrun). Arguments are passed on to the training program.
#
# The rendezvous is static on purpose: c10d would sort the hosts by address and so undo the plan's rank order.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
@read_hosts@long_name="${NODE_NAME:-$(hostname)}"
short_name="${NODE_NAME:-${long_name%%.*}}"
node_rank=-1
for k in "${!names[@]}"; do
  if [[ "${names[k]}" == "$long_name" || "${names[k]}" == "$short_name" ]]; then node_rank=$k; fi
done
if (( node_rank < 0 )); then
  echo "host $long_name is not in $hosts_file: write its name into column 1, or set NODE_NAME" >&2; exit 2
fi
@preamble@exec "${TORCHRUN:-torchrun}" --nnodes @num_hosts@ --nproc-per-node "${counts[node_rank]}" \
  --node-rank "$node_rank" --rdzv-backend static --master-addr "${MASTER_ADDR:-${names[0]}}" \
  --master-port "${MASTER_PORT:-@port@}" \
  @command@
