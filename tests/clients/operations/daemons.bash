# Daemons of an operation's own, for what ends one or wants it otherwise: the clients speak to them from then on. All that
# they have is below /run/t/$C, so that they go on with it when they are started again.
declare -A DAEMONS=()

# background NAME COMMAND: its process is ${DAEMONS[NAME]} until the operation ends, what it says is in NAME.log.
background() {
  setsid "${@:2}" </dev/null >>"$1.log" 2>&1 &
  DAEMONS[$1]=$!
  disown
}
# gone PID: it does not run. What remains of it, its parent takes at its leisure.
gone() { ! grep -qs '^State:[^Z]*$' "/proc/$1/status"; }
# answers NAME COMMAND: until it does; a daemon that has ended instead says why.
answers() {
  until_ eval "gone ${DAEMONS[$1]} || ${*:2}"
  ! gone "${DAEMONS[$1]}" || { tail -n 3 "$1.log" && return 1; }
}
crash() { kill -KILL "${DAEMONS[$1]}" && until_ gone "${DAEMONS[$1]}"; }

# containerd_: a containerd, started or started again.
containerd_() {
  mine
  export CONTAINERD_ADDRESS=$PWD/containerd.sock
  [[ -e containerd.toml ]] || containerd_config >containerd.toml
  background containerd containerd --config "$PWD/containerd.toml" --log-level warn
  answers containerd containerd_answers
  [[ -e imported ]] || for archive in "$ARCHIVE" ${PAUSE_ARCHIVE:-}; do ctr images import "$archive" >>imported; done
}
containerd_answers() { ctr version; }
containerd_config() {
  printf 'version = 2\nroot = "%s/store"\nstate = "%s/state"\n[grpc]\naddress = "%s"\n' "$PWD" "$PWD" "$CONTAINERD_ADDRESS"
  printf '[plugins."io.containerd.internal.v1.opt"]\npath = "%s/opt"\n' "$PWD"
}

# dockerd_ [OPTIONS]: a dockerd on that containerd, or on the bed's; started, or started again as it was.
DOCKERD_OPTIONS=()
dockerd_() {
  mine
  (($# == 0)) || DOCKERD_OPTIONS=("$@")
  local driver=cgroupfs runtimes={}
  # Docker has that one, and keeps its name.
  [[ $DOCKER_RUNTIME == runc ]] || runtimes="{\"$DOCKER_RUNTIME\": {\"path\": \"$BINARY\"}}"
  [[ ! -d /run/systemd/system ]] || driver=systemd
  cat >daemon.json <<JSON
{"runtimes": $runtimes, "exec-opts": ["native.cgroupdriver=$driver"],
 "storage-driver": "overlay2", "containerd": "${CONTAINERD_ADDRESS:-/run/containerd/containerd.sock}"}
JSON
  export DOCKER_HOST=unix://$PWD/docker.sock
  # In a network namespace of its own: without a bridge it removes that of the bed's, docker0.
  background dockerd unshare -n dockerd --config-file "$PWD/daemon.json" --host "$DOCKER_HOST" --data-root "$PWD/data" \
    --exec-root "$PWD/exec" --pidfile "$PWD/docker.pid" --containerd-namespace "$C" --containerd-plugins-namespace "$C.plugins" \
    --bridge none --iptables=false "${DOCKERD_OPTIONS[@]}"
  answers dockerd docker version
  [[ -n $(docker images -q) ]] || docker load -qi "$ARCHIVE" >/dev/null
}

# revive: start again those that an operation has left dead; what it made can be removed then.
revive() { for name in containerd dockerd; do [[ -z ${DAEMONS[$name]:-} ]] || ! gone "${DAEMONS[$name]}" || "${name}_"; done; }
end_daemons() {
  local name
  for name in dockerd containerd; do
    [[ -z ${DAEMONS[$name]:-} ]] || { kill "${DAEMONS[$name]}" && until_ gone "${DAEMONS[$name]}"; }
  done
  awk -v below="/run/t/$C/" 'index($2, below) == 1 { print $2 }' /proc/mounts | tac | xargs -r umount -l
}
