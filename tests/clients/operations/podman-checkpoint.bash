# rootless: CRIU needs capabilities of the host
### checkpoint and restore: it goes on counting
# says: goes on
# needs: criu
cli run -d --name "$C" --net=none "$IMAGE" sh -c 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done'
last() { cli logs "$C" | tail -n 1; }
until_ eval '[[ $(last) -ge 3 ]]'
cli container checkpoint "$C"
stood=$(last)
cli container restore "$C"
until_ eval '[[ $(last) -gt $stood ]]' && echo goes on
remove "$C"

### checkpoint: exported and made again under another name
# says: goes on
# needs: criu
cli run -d --name "$C" --net=none "$IMAGE" sh -c 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done'
id=$(cli inspect -f '{{.Id}}' "$C")
cli container checkpoint -e "$C.tar.gz" "$C"
remove "$C"
cli container restore -i "$C.tar.gz" -n "$C"
until_ eval '[[ $(cli logs "$C" | tail -n 1) -ge 1 ]]' && echo goes on
rm "$C.tar.gz"
remove "$C"
# runc 1.1 leaves the first container's cgroup, empty; under systemd it belongs to no scope any more.
[[ $BINARY != */runc ]] || find /sys/fs/cgroup -depth -type d -path "*/libpod-$id*" -exec rmdir {} +
