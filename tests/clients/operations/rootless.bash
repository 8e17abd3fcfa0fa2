# Rootless Podman's prelude, after those of Podman: every `podman` is a user's, who has made nothing yet but an image.
RL=/run/rootless
user() {
  setpriv --reuid 4343 --regid 4343 --clear-groups env -i HOME=$RL/home USER=tester XDG_RUNTIME_DIR=$RL/runtime TERM=dumb \
    CONTAINERS_CONF=$RL/containers.conf PATH="$PATH" "$@"
}
# It opens its output anew, and a pipe is its maker's.
podman() {
  [[ ! -p /dev/stdout ]] || chown 4343 /dev/stdout
  user podman "$@"
}
mine() { command mkdir -p "/run/t/$C" && chown 4343:4343 "/run/t/$C" && cd "/run/t/$C"; }
mkdir() { user mkdir "$@"; }
tar() { user tar "$@"; }
# A user loads no programs that decide about devices, and so Podman makes none for a pod.
devices_in_pod() { :; }
export RL
export -f user podman
