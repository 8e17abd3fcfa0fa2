# rootless: CRIU needs capabilities of the host
### checkpoint create, ls, rm; start --checkpoint: it goes on counting
# says: one
# says: goes on
# needs: criu
# broken: containerd-2.1 Docker restores nothing: the process it is told of is 0 (containerd/containerd#12141)
dockerd_ --experimental
run -d $IMAGE sh -c 'i=0; while :; do i=$((i+1)); echo $i; sleep .1; done' >/dev/null
last() { cli logs --tail 1 $C; }
counted() { [[ $(last) -gt $1 ]]; }
until_ counted 3
docker checkpoint create $C one
until_ eval '[[ $(state) == exited* ]]'
docker checkpoint ls $C | tail -n +2
stood=$(last)
# While containerd still has what `checkpoint create` has passed through its store, Docker cannot put it there again.
until_ cli start --checkpoint one $C
until_ counted $stood && echo goes on
docker checkpoint rm $C one
docker checkpoint ls $C | tail -n +2
cli logs $C | awk '$1 != NR { print "not in a row:", $0; exit }'
