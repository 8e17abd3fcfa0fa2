# Docker's prelude. `docker` itself stays the plain client.
cli() {
  case $1 in
    run | create) docker "$1" --runtime "$DOCKER_RUNTIME" "${@:2}" ;;
    *) docker "$@" ;;
  esac
}
remove() { docker rm -f "$@"; }
healthy() { [[ $(docker inspect -f '{{.State.Health.Status}}' "$C") == healthy ]]; }
unhealthy() { [[ $(docker inspect -f '{{.State.Health.Status}}' "$C") == unhealthy ]]; }
# Who has subordinate ids in the bed (tests/beds/native-run, in the guest bed.py): users' from 100000, groups' from 200000.
REMAPPED=daemon
remapped() { dockerd_ --userns-remap "$REMAPPED"; }
oom_seen() { [[ $(docker inspect -f '{{.State.OOMKilled}}' "$C") == true ]]; }
