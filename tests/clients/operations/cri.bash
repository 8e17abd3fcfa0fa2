# What a kubelet does: pods and containers through containerd's CRI plugin. Each runtime is a handler.
IMAGE=docker.io/$IMAGE
cri() { "$PYTHON" -m tests.clients.cri "$@"; }
# Fields of a pod, which are in the requests for its containers too.
PODFIELDS=()
# The namespaces of pods and of their containers, unless an operation says another one.
NETWORK=NODE PIDS=CONTAINER USERS=
namespaces() { echo "linux.security_context.namespace_options:={\"network\":\"$NETWORK\",\"pid\":\"$PIDS\"$USERS}"; }
# pod [FIELDS]: a pod that is ready; its id in POD.
pod() {
  local parent=/cri
  [[ ! -d /run/systemd/system ]] || parent=/cri.slice
  PODFIELDS=(metadata.name="$C" metadata.uid="$C" metadata.namespace=n log_directory="/run/t/$C/logs"
    dns_config.servers:='["192.0.2.53"]' linux.cgroup_parent="$parent" "$(namespaces)" "$@")
  POD=$(cri RunPodSandbox runtime_handler="$DOCKER_RUNTIME" "${PODFIELDS[@]/#/config.}" -q pod_sandbox_id)
}
# box NAME [FIELDS] -- COMMAND: a container that is created; its id in BOX. FIELDS are those of its config.
box() {
  local name=$1 fields=()
  shift
  while (($#)) && [[ $1 != -- ]]; do fields+=("config.$1") && shift; done
  BOX=$(cri CreateContainer pod_sandbox_id="$POD" "${PODFIELDS[@]/#/sandbox_config.}" config.metadata.name="$name" \
    config.image.image="$IMAGE" config.log_path="$name.log" "config.$(namespaces)" "${fields[@]}" -q container_id "$@")
}
# boot NAME [FIELDS] -- COMMAND: a container that is started.
boot() { box "$@" && start; }
start() { cri StartContainer container_id="$BOX" >/dev/null; }
stop() { cri StopContainer container_id="$BOX" timeout:="$1" >/dev/null; }
# up [FIELDS]: a pod with a container that ends at SIGTERM.
WAITS="trap 'exit 0' TERM; echo up; sleep 1000 & wait"
up() { pod && boot c "$@" -- sh -c "$WAITS"; }
in_() { cri ExecSync container_id="$BOX" -- "$@"; }
status() { cri ContainerStatus container_id="$BOX" -q status.state -q status.exit_code -q status.reason; }
exited() { cri ContainerStatus container_id="$BOX" --until status.state=EXITED -q status.state >/dev/null; }
notready() { cri PodSandboxStatus pod_sandbox_id="$POD" --until status.state=NOTREADY -q status.state; }
# What containers have written: the line without its time.
logs() { cut -d' ' -f2- "/run/t/$C/logs/$1.log"; }
# run_ [FIELDS] -- COMMAND: a container to its end, in a pod of its own.
run_() { pod && boot c "$@" && exited && logs c && status; }
pid() { ctr tasks ls | awk -v c="$BOX" '$1 == c { print $2 }'; }
# What comes of it is the removal's: a pod that has been removed cannot be stopped.
end() {
  cri StopPodSandbox pod_sandbox_id="$POD" >/dev/null || :
  cri RemovePodSandbox pod_sandbox_id="$POD" >/dev/null
}
# As a kubelet: until it is done. What is never done, test_nothing_is_left finds.
tidy() { [[ -z ${POD:-} ]] || until_ end; }
export -f cri
# A containerd of the operation's own (`containerd_`) is configured as the one of all others.
containerd_config() {
  sed "s|^root = .*|root = \"$PWD/store\"|;s|^state = .*|state = \"$PWD/state\"|;s|^address = .*|address = \"$PWD/containerd.sock\"|" "$CRI_CONFIG"
}
containerd_answers() { CRI_ADDRESS=$CONTAINERD_ADDRESS && cri Status; }
# ids HOST: the first 65536 of a container.
ids() { echo "[{\"host_id\":$1,\"container_id\":0,\"length\":65536}]"; }
# remapped: the pods from now on have a user namespace; with a network of their own, as a kubelet wants it.
remapped() { NETWORK=POD USERS=",\"userns_options\":{\"mode\":\"POD\",\"uids\":$(ids 100000),\"gids\":$(ids 200000)}"; }
# device_files: a CDI file of the operation's own, with the devices $KIND=one and =two; SEE says what there is of the first.
device_files() {
  KIND=test.example/$C
  trap 'rm -f "$CDI/$C.json"; finish' EXIT
  cat >"$CDI/$C.json" <<JSON
{"cdiVersion": "0.5.0", "kind": "$KIND", "devices": [
  {"name": "one", "containerEdits": {"env": ["FROM=from a CDI file"],
   "deviceNodes": [{"path": "/dev/one", "type": "c", "major": 1, "minor": 8, "fileMode": 438, "permissions": "rw"}]}},
  {"name": "two", "containerEdits": {
   "deviceNodes": [{"path": "/dev/two", "type": "c", "major": 1, "minor": 5, "fileMode": 438, "permissions": "rw"}]}}]}
JSON
}
SEE='echo one $(ls -l /dev/one | tr -s " " | cut -d" " -f1,5,6) $(head -c 1 /dev/one >/dev/null && echo $FROM)'
