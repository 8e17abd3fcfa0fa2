# Rootless Podman's prelude, after those of Podman: every `podman` is a user's, who has made nothing yet but an image.
RL=/run/rootless
user() {
  setpriv --reuid 4343 --regid 4343 --clear-groups env -i HOME=$RL/home USER=tester XDG_RUNTIME_DIR=$RL/runtime TERM=dumb \
    CONTAINERS_CONF=$RL/containers.conf PATH="$PATH" "$@"
}
podman() { user podman "$@"; }
mine() { mkdir -p "/run/t/$C" && chown 4343:4343 "/run/t/$C" && cd "/run/t/$C"; }
export RL
export -f user podman
