### -v
# says: hi
# says: w
mine
echo hi >f
run --rm -v $PWD:/v $IMAGE sh -c 'cat /v/f; echo w >/v/g'
cat g

### -v ro
# says: refused
mine
run --rm -v $PWD:/v:ro $IMAGE sh -c 'echo w >/v/g' || echo refused

### -v of a file
# says: hi
mine
echo hi >f
run --rm -v $PWD/f:/etc/group:ro $IMAGE cat /etc/group

### -v: named volume
# says: copied
# says: x
cli volume create $C >/dev/null
run -v $C:/etc $IMAGE sh -c 'test -s /etc/passwd && echo copied; echo x >/etc/x'
cli rm -f $C >/dev/null
run --rm -v $C:/w $IMAGE cat /w/x
cli volume rm -f $C >/dev/null

### --volumes-from
# says: hi
mine
echo hi >f
up -v $PWD:/v
cli run --rm --network none --volumes-from $C $IMAGE cat /v/f

### --mount type=bind,readonly
# says:  /v ro
mine
run --rm --mount type=bind,source=$PWD,target=/v,readonly $IMAGE sh -c 'grep -o " /v ro" /proc/self/mountinfo'

### -v private
# says: it is private
# says: mounted outside, seen inside: 0
# says: mounted inside, seen outside: 0
propagation private

### -v rprivate
# says: it is private
# says: mounted outside, seen inside: 0
# says: mounted inside, seen outside: 0
propagation rprivate

### -v slave
# says: it is master
# says: mounted outside, seen inside: 1
# says: mounted inside, seen outside: 0
propagation slave

### -v rslave
# says: it is master
# says: mounted outside, seen inside: 1
# says: mounted inside, seen outside: 0
propagation rslave

### -v shared
# rootless: what is mounted in a user namespace is not seen outside
# says: it is shared
# says: mounted outside, seen inside: 1
# says: mounted inside, seen outside: 1
propagation shared

### -v rshared
# rootless: what is mounted in a user namespace is not seen outside
# says: it is shared
# says: mounted outside, seen inside: 1
# says: mounted inside, seen outside: 1
propagation rshared

### --tmpfs
# says: 1770
# says: size=2048k.*
# says: noexec
run --rm --tmpfs /t:size=2m,mode=1770,noexec $IMAGE sh -c 'stat -c %a /t; grep " /t " /proc/self/mounts | tr , "\n" | grep -e noexec -e size'

### --read-only
# says: refused
# says: .*Read-only file system.*
run --rm --read-only $IMAGE sh -c 'touch /x; touch /etc/x' || echo refused

### --read-only --tmpfs
# says: written
# says: refused
run --rm --read-only --tmpfs /t $IMAGE sh -c 'touch /t/x && echo written; touch /x'|| echo refused

### mounts of a container
# says: /proc proc
# says: /dev/mqueue mqueue
run --rm $IMAGE awk '{print $2, $3}' /proc/self/mounts | grep -v -e /etc/ -e /run/ | sort

### what is hidden
# says: hidden files: 0
# says: read-only: 2
run --rm $IMAGE sh -c 'cat /proc/keys /proc/timer_list /proc/kcore 2>/dev/null | wc -c | sed "s/^/hidden files: /"
  ls /sys/firmware /proc/acpi 2>/dev/null
  grep -cE " (/proc/sys|/sys) [a-z]+ ro" /proc/mounts | sed "s/^/read-only: /"'

### nodes in /dev
run --rm $IMAGE sh -c 'cd /dev; ls -lR . | tr -s " " | cut -d" " -f1,3-6,10-'
