# containerd's own client: nothing between it and the shim that calls the runtime.
IMAGE=docker.io/$IMAGE
# run_ [OPTIONS] -- COMMAND: ctr wants the container's name in the midst.
run_() {
  local options=()
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  ctr run --runc-binary "$BINARY" "${options[@]}" "$IMAGE" "$C" "${@:2}"
}
up() { run_ -d "$@" -- sh -c "trap 'exit 0' TERM; echo up; sleep 1000 & wait" >/dev/null; }
execs=0
# ctr drops what it has not read when the process ends, with any runtime: a process that has said something lingers.
in_() { execs=$((execs + 1)) && ctr tasks exec --exec-id "e$execs.$BASHPID" "$C" sh -c '"$@"; rc=$?; sleep .3; exit $rc' sh "$@"; }
status() { ctr tasks ls | awk -v c="$C" '$1 == c { print $3 }'; }
pid() { ctr tasks ls | awk -v c="$C" '$1 == c { print $2 }'; }
stopped() { [[ $(status) == STOPPED ]]; }
# The end of a task takes a moment to be known.
end() { ctr tasks kill -s KILL "$C" >/dev/null 2>&1 || :; until_ stopped; ctr tasks rm "$C" 2>&1 | sed 's/.*/task removed: &/'; ctr containers rm "$C"; }
tidy() {
  [[ -z $(status) ]] || end || :
  ctr containers rm "$C"
}
export -f run_
