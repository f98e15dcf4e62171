hosts_file="${HOSTS_FILE:-$here/hosts.txt}"
set -a; source "$here/settings.env"; set +a
names=(); counts=(); planned=()
while read -r name count plan_name _ || [[ -n "$name" ]]; do
  [[ -z "$name" || "$name" == \#* ]] && continue
  names+=("$name"); counts+=("$count"); planned+=("$plan_name")
done < "$hosts_file"
total=0; for count in "${counts[@]}"; do total=$((total + count)); done
if (( ${#names[@]} != @num_hosts@ || total != @world_size@ )); then
  echo "$hosts_file: ${#names[@]} hosts with $total processes; the plan has @num_hosts@ hosts with @world_size@" >&2; exit 2
fi
twice="$(printf '%s\n' "${names[@]}" | sort | uniq -d | sed -n 1p)"
if [[ -n "$twice" ]]; then echo "$hosts_file: host $twice is listed twice" >&2; exit 2; fi
