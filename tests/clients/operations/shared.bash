# Before the operations of every client.
# fails CODE COMMAND: it must end with this code.
fails() {
  local want=$1 rc=0
  shift
  "$@" || rc=$?
  echo "exit code $rc"
  # shellcheck disable=SC2053  # a pattern is meant: clients have changed their minds
  [[ $rc == $want ]]
}
# until_ COMMAND: try until it succeeds, in silence, for PATIENCE seconds: the machine may do other things as well.
until_() {
  local end=$((SECONDS + ${PATIENCE:-60}))
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS > end)); then
      echo "never: $*"
      return 1
    fi
    sleep .05
  done
}
# A directory of the operation's own.
mine() { mkdir -p "/run/t/$C" && cd "/run/t/$C"; }
# cgroup_of PID: its directory.
cgroup_of() { echo "/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$1/cgroup")"; }
cgroup() { cgroup_of "$(pid)"; }
# Until its process catches SIGTERM: before, process 1 does not know of it.
listening() { until_ eval 'grep -q "^SigCgt:.*[4-7c-f]...$" "/proc/$(pid)/status"'; }
# At its end, whatever it came to: what it has made (`tidy` is the client's), the daemons of its own, its directory.
finish() {
  cd /
  revive >/dev/null 2>&1 || :
  tidy >/dev/null 2>&1 || :
  end_daemons >/dev/null 2>&1 || :
  rm -rf "/run/t/$C"
}
trap finish EXIT
terminal() { "$BEDS/terminal" "$@"; }
parent() { awk '$1 == "PPid:" { print $2 }' "/proc/$1/status"; }
