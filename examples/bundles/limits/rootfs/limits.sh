# What the container's own cgroup says about it, seen from inside.
show() {
  if [ -r "/sys/fs/cgroup/$2" ]; then value=$(cat "/sys/fs/cgroup/$2"); else value="not limited (this host's cgroup v2 lacks the controller)"; fi
  echo "  $1  $value"
}
echo "Limits of $(cat /proc/sys/kernel/hostname), pid $$:"
show "memory     " memory.max
show "memory used" memory.current
show "cpu        " cpu.max
show "processes  " pids.max
