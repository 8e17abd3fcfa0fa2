#!/bin/sh
cd /sys/fs/cgroup || exit 1
for f in cpuset.cpus.effective cpuset.cpus.partition; do echo "$f: $(cat $f)"; done
