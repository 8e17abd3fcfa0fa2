### run: output and errors
# says: out
# says: ! err
# guest
run --rm $IMAGE sh -c 'echo out; echo err >&2'

### run: exit code
# says: exit code 42
for i in 0 3 42; do fails $i run --rm $IMAGE sh -c "exit $i"; done

### run: command not found
# says: exit code 127
# says: .*not found.*
fails 127 run --rm $IMAGE nosuchcommand

### run: path not found
# says: exit code 127
fails 127 run --rm $IMAGE /no/such/command

### run: command that may not run
# says: exit code 126
# says: (?i).*permission denied.*
fails 126 run --rm $IMAGE /etc/passwd

### run: command is a directory
# says: exit code 126
fails 126 run --rm $IMAGE /etc

### run -i
# says: 2
printf 'one\ntwo\n' | run --rm -i $IMAGE wc -l

### run -i: much data both ways
# says: 3000000
head -c 3000000 /dev/zero | run --rm -i $IMAGE cat | wc -c

### run -it
# says: /dev/pts/0\\r
# says: 31 97\\r
# says: all\\r
# guest
terminal --size 31x97 -- bash -c "run --rm -it $IMAGE sh -c 'tty; until stty size 2>/dev/null | grep 31; do sleep .1; done; test -t 0 -a -t 1 -a -t 2 && echo all'"

### run -it: what is typed
# says: 42
# says: code 5
terminal --say '# =echo $((6*7))\r' --say '42=' --say '# =exit 5\r' -- bash -c "run --rm -it $IMAGE sh" || echo "code $?"

### run -it: resized
# says: 33 101
terminal --size 20x60 --say 'ready=' --resize '=33x101' -- bash -c "run --rm -it $IMAGE sh -c 'echo ready; until stty size 2>/dev/null | grep 33; do sleep .1; done; sleep .5'"

### run -it: interrupted by ^C
# says: (\^C)?caught
# says: code 9
terminal --say 'ready=\x03' -- bash -c "run --rm -it $IMAGE sh -c 'trap \"echo caught; exit 9\" INT; echo ready; sleep 100 & wait'" || echo "code $?"

### run -it: detached by its keys, attached again
# says: running
# says: got hello
# says: 0
terminal --say 'ready=\x10' --say '=\x11' -- bash -c "run -it $IMAGE sh -c 'sleep 1; echo ready; read x; echo got \$x'"
cli inspect -f '{{.State.Status}}' $C
until_ says ready
# Its echo comes once or twice; and Podman says the size, to one that may have ended.
terminal --say '=hello\r' -- bash -c "cli attach $C" | grep -v -e "^hello" -e "container not running"
cli wait $C

### run -t without -i
# says: terminal
run --rm -t $IMAGE sh -c 'test -t 1 && echo terminal' | tr -d '\r'

### run -d, wait, logs
# says: 9
# says: one
# says: ! two
# says: exited 9
run -d $IMAGE sh -c 'echo one; echo two >&2; sleep .3; exit 9' >/dev/null
cli wait $C
cli logs $C
state

### logs -f
# says: 1
# says: 2
# says: 3
run -d $IMAGE sh -c 'for i in 1 2 3; do echo $i; sleep .1; done' >/dev/null
cli logs -f $C

### logs --tail
# says: 8
# says: 9
run $IMAGE seq 1 9 >/dev/null
cli logs --tail 2 $C

### run --rm leaves nothing
run --rm $IMAGE true
cli container inspect $C >/dev/null 2>&1 && echo left
cli ps -a --filter name=$C --format '{{.Names}}'

### run: environment
# says: A=one two
# says: B=
# says: PATH=.*
run --rm -e A='one two' -e B= $IMAGE env | sort | grep -v -e HOSTNAME -e container

### run --env-file
# says: 1-x y
mine
printf 'A=1\n# no\nB=x y\n' >env
run --rm --env-file env $IMAGE sh -c 'echo "$A-$B"'

### run -w, -u, --group-add
# says: /tmp
# says: 1000
# says: 1001
# says: 1001 1234
run --rm -w /tmp -u 1000:1001 --group-add 1234 $IMAGE sh -c 'pwd; id -u; id -g; id -G'

### run --hostname
# says: abc
run --rm --hostname abc $IMAGE hostname

### run --entrypoint
# says: said
run --rm --entrypoint /bin/echo $IMAGE -n said
echo

### run --init
# says: code 4
run --rm --init $IMAGE sh -c 'cat /proc/1/comm; (sleep .1 &); exit 4' || echo code $?

### run --cidfile, --label
# says: 64
mine
run --cidfile id --label a=b $IMAGE true
wc -c <id

### run --add-host, --dns
# says: 1
cli run --rm --name $C --network bridge --add-host h:1.2.3.4 --dns 9.9.9.9 $IMAGE sh -c 'grep 1.2.3.4 /etc/hosts; grep -c 9.9.9.9 /etc/resolv.conf'

### run --stop-signal
# says: exited 3
# says: usr1
run -d --stop-signal USR1 $IMAGE sh -c 'trap "echo usr1; exit 3" USR1; echo up; sleep 1000 & wait' >/dev/null
until_ says up
cli stop -t 9 $C >/dev/null
state
cli logs $C

### run --ulimit
# says: 111
# says: 222
run --rm --ulimit nofile=111:222 $IMAGE sh -c 'ulimit -n; ulimit -Hn'

### run --sysctl
# says: 1
# says: 9000
run --rm --sysctl net.ipv4.ip_forward=1 --sysctl kernel.msgmax=9000 $IMAGE cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax

### run --shm-size
# says: 3072
run --rm --shm-size 3m $IMAGE sh -c 'df -k /dev/shm | tail -1 | tr -s " " | cut -d" " -f2'

### run --oom-score-adj
# says: 500
run --rm --oom-score-adj 500 $IMAGE cat /proc/self/oom_score_adj

### create, start -a
# says: created
# says: hi
# says: exit code 6
cli create --name $C --network none $IMAGE sh -c 'echo hi; exit 6' >/dev/null
cli inspect -f '{{.State.Status}}' $C
fails 6 cli start -a $C

### start again
# says: 1
# says: 2
# says: 3
run $IMAGE sh -c 'echo once >>/root/n; wc -l </root/n'
cli start -a $C
cli start -a $C
