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
