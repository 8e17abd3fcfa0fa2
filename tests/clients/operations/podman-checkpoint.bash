### checkpoint and restore: it goes on counting
# says: goes on
# needs: criu
# on: native
cli run -d --name "$C" --net=none "$IMAGE" sh -c 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done'
last() { cli logs "$C" | tail -n 1; }
for _ in $(seq 200); do [[ $(last || :) -ge 3 ]] 2>/dev/null && break; sleep 0.05; done
cli container checkpoint "$C"
stood=$(last)
cli container restore "$C"
for _ in $(seq 200); do [[ $(last) -gt $stood ]] && break; sleep 0.05; done
[[ $(last) -gt $stood ]] && echo goes on
remove "$C"

### checkpoint: exported and made again under another name
# says: goes on
# needs: criu
# on: native
cli run -d --name "$C" --net=none "$IMAGE" sh -c 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done'
cli container checkpoint -e "$C.tar.gz" "$C"
remove "$C"
cli container restore -i "$C.tar.gz" -n "$C"
for _ in $(seq 200); do [[ $(cli logs "$C" | tail -n 1) -ge 1 ]] 2>/dev/null && break; sleep 0.05; done
[[ $(cli logs "$C" | tail -n 1) -ge 1 ]] && echo goes on
rm "$C.tar.gz"
remove "$C"
