
### -v
# says: hi
# says: w
# guest
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
# says: private
# says: 0
# says: 0
mine
mkdir -p m
mount -t tmpfs t m
mount --make-shared m
mkdir m/d m/host
trap 'umount -R m; finish' EXIT
look() { in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE '(shared|master)' || echo private"; }
up -v $PWD/m:/v:private
look
mount -t tmpfs late m/host
in_ grep -c ' /v/host ' /proc/self/mountinfo || :
cli rm -f $C >/dev/null
up --cap-add SYS_ADMIN --security-opt seccomp=unconfined  -v $PWD/m:/v:private
in_ mount -t tmpfs inner /v/d
grep -c "$C/m/d " /proc/self/mountinfo || :

### -v rprivate
# says: private
# says: 0
# says: 0
mine
mkdir -p m
mount -t tmpfs t m
mount --make-shared m
mkdir m/d m/host
trap 'umount -R m; finish' EXIT
look() { in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE '(shared|master)' || echo private"; }
up -v $PWD/m:/v:rprivate
look
mount -t tmpfs late m/host
in_ grep -c ' /v/host ' /proc/self/mountinfo || :
cli rm -f $C >/dev/null
up --cap-add SYS_ADMIN --security-opt seccomp=unconfined  -v $PWD/m:/v:rprivate
in_ mount -t tmpfs inner /v/d
grep -c "$C/m/d " /proc/self/mountinfo || :

### -v slave
# says: master
# says: 1
# says: 0
mine
mkdir -p m
mount -t tmpfs t m
mount --make-shared m
mkdir m/d m/host
trap 'umount -R m; finish' EXIT
look() { in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE '(shared|master)' || echo private"; }
up -v $PWD/m:/v:slave
look
mount -t tmpfs late m/host
in_ grep -c ' /v/host ' /proc/self/mountinfo || :
cli rm -f $C >/dev/null
up --cap-add SYS_ADMIN --security-opt seccomp=unconfined  -v $PWD/m:/v:slave
in_ mount -t tmpfs inner /v/d
grep -c "$C/m/d " /proc/self/mountinfo || :

### -v rslave
# says: master
# says: 1
# says: 0
mine
mkdir -p m
mount -t tmpfs t m
mount --make-shared m
mkdir m/d m/host
trap 'umount -R m; finish' EXIT
look() { in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE '(shared|master)' || echo private"; }
up -v $PWD/m:/v:rslave
look
mount -t tmpfs late m/host
in_ grep -c ' /v/host ' /proc/self/mountinfo || :
cli rm -f $C >/dev/null
up --cap-add SYS_ADMIN --security-opt seccomp=unconfined  -v $PWD/m:/v:rslave
in_ mount -t tmpfs inner /v/d
grep -c "$C/m/d " /proc/self/mountinfo || :

### -v shared
# says: shared
# says: 1
# says: 1
mine
mkdir -p m
mount -t tmpfs t m
mount --make-shared m
mkdir m/d m/host
trap 'umount -R m; finish' EXIT
look() { in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE '(shared|master)' || echo private"; }
up -v $PWD/m:/v:shared
look
mount -t tmpfs late m/host
in_ grep -c ' /v/host ' /proc/self/mountinfo || :
cli rm -f $C >/dev/null
up --cap-add SYS_ADMIN --security-opt seccomp=unconfined  -v $PWD/m:/v:shared
in_ mount -t tmpfs inner /v/d
grep -c "$C/m/d " /proc/self/mountinfo || :

### -v rshared
# says: shared
# says: 1
# says: 1
mine
mkdir -p m
mount -t tmpfs t m
mount --make-shared m
mkdir m/d m/host
trap 'umount -R m; finish' EXIT
look() { in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE '(shared|master)' || echo private"; }
up -v $PWD/m:/v:rshared
look
mount -t tmpfs late m/host
in_ grep -c ' /v/host ' /proc/self/mountinfo || :
cli rm -f $C >/dev/null
up --cap-add SYS_ADMIN --security-opt seccomp=unconfined  -v $PWD/m:/v:rshared
in_ mount -t tmpfs inner /v/d
grep -c "$C/m/d " /proc/self/mountinfo || :

### --tmpfs
# says: 1770
# says: size=2048k.*
# says: noexec
run --rm --tmpfs /t:size=2m,mode=1770,noexec $IMAGE sh -c 'stat -c %a /t; grep " /t " /proc/self/mounts | tr , "\n" | grep -e noexec -e size'

### --read-only
# says: refused
# says: .*Read-only file system.*
# guest
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
# says: 2
run --rm $IMAGE sh -c 'grep -c . /proc/kcore /proc/keys /proc/timer_list 2>&1; ls /proc/acpi /sys/firmware | wc -l; touch /proc/sys/kernel/x /sys/x 2>&1 | grep -c Read-only; echo 1 >/proc/sysrq-trigger'

### nodes in /dev
run --rm $IMAGE sh -c 'cd /dev; ls -lR . | tr -s " " | cut -d" " -f1,3-6,10-'
