# What Docker and Podman have in common, before each of their operations. `cli` is the client with the runtime.
run() { cli run --name "$C" --network none "$@"; }
# A container that ends at SIGTERM, in a wait without polling.
up() { run -d "$@" "$IMAGE" sh -c "trap 'exit 0' TERM; sleep 1000 & wait" >/dev/null; }
in_() { cli exec "$C" "$@"; }
tidy() { remove "$C"; }
export -f cli run

says() { cli logs "$C" 2>&1 | grep -q "$1"; }
state() { cli inspect -f '{{.State.Status}} {{.State.ExitCode}}' "$C"; }
pid() { cli inspect -f '{{.State.Pid}}' "$C"; }

# propagation FLAG: a shared mount of this machine in a container; what each side mounts later, as the other sees it.
propagation() {
  mine
  mkdir m
  mount -t tmpfs t m
  mount --make-shared m
  trap 'umount -R m; finish' EXIT
  mkdir m/outside m/inside
  up --cap-add SYS_ADMIN --security-opt seccomp=unconfined -v "$PWD/m:/v:$1"
  echo "it is $(in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE 'shared|master' || echo private")"
  mount -t tmpfs outer m/outside
  echo "mounted outside, seen inside: $(in_ grep -c ' /v/outside ' /proc/self/mountinfo)"
  in_ mount -t tmpfs inner /v/inside
  echo "mounted inside, seen outside: $(grep -c "$C/m/inside " /proc/self/mountinfo)"
}
