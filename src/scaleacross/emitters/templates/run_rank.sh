#!/usr/bin/env bash
# Starts one process of mpirun or mpiexec: torch's rendezvous env:// reads names that neither sets. MASTER_ADDR (default: the first
# host of the host file beside this script) and MASTER_PORT (@port@) may be set.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
set -a; source "$here/settings.env"; set +a
if [[ -n "${OMPI_COMM_WORLD_RANK:-}" ]]; then  # Open MPI
  hosts="$here/openmpi" RANK="$OMPI_COMM_WORLD_RANK" WORLD_SIZE="$OMPI_COMM_WORLD_SIZE"
  LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK" LOCAL_WORLD_SIZE="$OMPI_COMM_WORLD_LOCAL_SIZE"
elif [[ -n "${PMI_RANK:-}" && -n "${MPI_LOCALRANKID:-}" ]]; then  # Hydra: MPICH, Intel MPI
  hosts="$here/mpich" RANK="$PMI_RANK" WORLD_SIZE="$PMI_SIZE" LOCAL_RANK="$MPI_LOCALRANKID" LOCAL_WORLD_SIZE="$MPI_LOCALNRANKS"
else
  echo "start this by mpirun of Open MPI or by mpiexec of MPICH or Intel MPI, as in SUBMIT.md" >&2; exit 2
fi
if (( WORLD_SIZE != @size@ )); then echo "$WORLD_SIZE processes are started; the plan has @size@" >&2; exit 2; fi
MASTER_ADDR="${MASTER_ADDR:-$(sed -n '/^[^#[:space:]]/{s/[[:space:]:].*//;p;q}' "$hosts")}" MASTER_PORT="${MASTER_PORT:-@port@}"
export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
exec "$@"
