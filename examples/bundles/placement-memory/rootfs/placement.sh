#!/bin/sh
cd /sys/fs/cgroup || exit 1
for f in memory.max memory.high memory.swap.max memory.oom.group; do echo "$f: $(cat $f)"; done
