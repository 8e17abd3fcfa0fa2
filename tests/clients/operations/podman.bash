# Podman's prelude.
cli() { podman --runtime "$BINARY" "$@"; }
remove() { cli rm -f -t 0 "$@"; }
# Without systemd there is no timer that runs the checks.
checked() {
  cli healthcheck run "$C" || :
  [[ $(podman inspect -f '{{if .State.Healthcheck}}{{.State.Healthcheck.Status}}{{else}}{{.State.Health.Status}}{{end}}' "$C") == "$1" ]]
}
healthy() { checked healthy; }
unhealthy() { checked unhealthy; }
