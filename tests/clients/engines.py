"""What Docker and Podman have in common: the same operations, in the same words."""

from __future__ import annotations

from tests.clients.operation import Operation

#: After the line that defines `cli`. A container that ends at SIGTERM, and a wait without a time in it.
PRELUDE = r"""
run() { cli run --name "$C" --network none "$@"; }
up() { run -d "$@" "$IMAGE" sh -c "trap 'exit 0' TERM; sleep 1000 & wait" >/dev/null; }
in_() { cli exec "$C" "$@"; }
fails() { local want=$1 rc=0; shift; "$@" || rc=$?; [[ $rc == "$want" ]] || { echo "exit code $rc, not $want"; return 1; }; echo "exit code $rc"; }
until_() { local i; for i in {1..300}; do if "$@" >/dev/null 2>&1; then return 0; fi; sleep .05; done; echo "never: $*"; return 1; }
says() { cli logs "$C" 2>&1 | grep -q "$1"; }
state() { cli inspect -f '{{.State.Status}} {{.State.ExitCode}}' "$C"; }
pid() { cli inspect -f '{{.State.Pid}}' "$C"; }
cgroup() { echo "/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$(pid)/cgroup")"; }
mine() { mkdir -p "/run/t/$C"; cd "/run/t/$C"; }
terminal() { "$BEDS/terminal" "$@"; }
"""

RUN = (
    Operation("run: output and errors", "run --rm $IMAGE sh -c 'echo out; echo err >&2'", ("out", "! err"), guest=True),
    Operation("run: exit code", "for i in 0 3 42; do fails $i run --rm $IMAGE sh -c \"exit $i\"; done", ("exit code 42",)),
    Operation("run: killed by a signal", "fails 137 run --rm $IMAGE sh -c 'kill -KILL $$; exec sleep 9' || cli rm -f $C",
              native="a shell that is process 1 of its pid namespace cannot kill itself"),
    Operation("run: command not found", "fails 127 run --rm $IMAGE nosuchcommand", ("exit code 127", ".*not found.*"), guest=True),
    Operation("run: path not found", "fails 127 run --rm $IMAGE /no/such/command", ("exit code 127",)),
    Operation("run: command that may not run", "fails 126 run --rm $IMAGE /etc/passwd", ("exit code 126", "(?i).*permission denied.*")),
    Operation("run: command is a directory", "fails 126 run --rm $IMAGE /etc", ("exit code 126",)),
    Operation("run -i", "printf 'one\\ntwo\\n' | run --rm -i $IMAGE wc -l", ("2",)),
    Operation("run -i: much data both ways", "head -c 3000000 /dev/zero | run --rm -i $IMAGE cat | wc -c", ("3000000",)),
    Operation("run -it", "terminal --size 31x97 -- bash -c \"$(declare -f cli run); run --rm -it $IMAGE sh -c 'tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo all'\"",
              ("/dev/pts/0", "31 97", "all"), guest=True),
    Operation("run -it: what is typed",
              r"""terminal --say '# =echo $((6*7))\r' --say '42=exit 5\r' -- bash -c "$(declare -f cli run); run --rm -it $IMAGE sh" || echo "code $?" """, ("42", "code 5")),
    Operation("run -it: resized",
              r"""terminal --size 20x60 --say 'ready=' --resize '=33x101' -- bash -c "$(declare -f cli run); run --rm -it $IMAGE sh -c 'echo ready; until stty size | grep 33; do sleep .1; done'" """,
              ("33 101",)),
    Operation("run -it: interrupted by ^C",
              r"""terminal --say 'ready=\x03' -- bash -c "$(declare -f cli run); run --rm -it $IMAGE sh -c 'trap \"echo caught; exit 9\" INT; echo ready; sleep 100 & wait'" || echo "code $?" """,
              (r"(\^C)?caught", "code 9")),
    Operation("run -it: detached by its keys, attached again",
              r"""terminal --say 'ready=\x10\x11' -- bash -c "$(declare -f cli run); run -it $IMAGE sh -c 'echo ready; read x; echo got \$x'"
                  cli inspect -f '{{.State.Status}}' $C
                  until_ says ready
                  terminal --say '=hello\r' -- bash -c "$(declare -f cli); cli attach $C"; state""", ("running", "got hello", "exited 0")),
    Operation("run -t without -i", "run --rm -t $IMAGE sh -c 'test -t 1 && echo terminal' | tr -d '\\r'", ("terminal",)),
    Operation("run -d, wait, logs", "run -d $IMAGE sh -c 'echo one; echo two >&2; sleep .3; exit 9' >/dev/null; cli wait $C; cli logs $C; state",
              ("9", "one", "! two", "exited 9"), guest=True),
    Operation("logs -f", "run -d $IMAGE sh -c 'for i in 1 2 3; do echo $i; sleep .1; done' >/dev/null; cli logs -f $C", ("1", "2", "3")),
    Operation("logs --tail", "run $IMAGE seq 1 9 >/dev/null; cli logs --tail 2 $C", ("8", "9")),
    Operation("run --rm leaves nothing", "run --rm $IMAGE true; fails 1 cli container inspect $C >/dev/null 2>&1; cli ps -a --filter name=$C --format '{{.Names}}'"),
    Operation("run: environment", "run --rm -e A='one two' -e B= $IMAGE env | sort | grep -v -e HOSTNAME -e container", ("A=one two", "B=", "PATH=.*")),
    Operation("run --env-file", "mine; printf 'A=1\\n# no\\nB=x y\\n' >env; run --rm --env-file env $IMAGE sh -c 'echo \"$A-$B\"'", ("1-x y",)),
    Operation("run -w, -u, --group-add", "run --rm -w /tmp -u 1000:1001 --group-add 1234 $IMAGE sh -c 'pwd; id -u; id -g; id -G'", ("/tmp", "1000", "1001", "1001 1234")),
    Operation("run -w: a directory that is not there", "run --rm -w /made/here $IMAGE pwd", ("/made/here",)),
    Operation("run -u: unknown user", "fails 125 run --rm -u nosuchuser $IMAGE true || fails 126 run --rm -u nosuchuser $IMAGE true"),
    Operation("run --hostname", "run --rm --hostname abc $IMAGE hostname", ("abc",)),
    Operation("run --entrypoint", "run --rm --entrypoint /bin/echo $IMAGE -n said; echo", ("said",)),
    Operation("run --init", "run --rm --init $IMAGE sh -c 'cat /proc/1/comm; echo $$; (sleep .1 &); exit 4' || echo code $?", ("code 4",)),
    Operation("run --cidfile, --label", "mine; run --rm --cidfile id --label a=b $IMAGE true; wc -c <id", ("64",)),
    Operation("run --add-host, --dns", "run --rm --network bridge --add-host h:1.2.3.4 --dns 9.9.9.9 $IMAGE sh -c 'grep 1.2.3.4 /etc/hosts; grep -c 9.9.9.9 /etc/resolv.conf'", ("1",)),
    Operation("run --stop-signal", "run -d --stop-signal USR1 $IMAGE sh -c 'trap \"echo usr1; exit 3\" USR1; echo up; sleep 1000 & wait' >/dev/null; until_ says up; cli stop -t 9 $C >/dev/null; state; cli logs $C", ("exited 3", "usr1")),
    Operation("run --ulimit", "run --rm --ulimit nofile=111:222 $IMAGE sh -c 'ulimit -n; ulimit -Hn'", ("111", "222")),
    Operation("run --sysctl", "run --rm --sysctl net.ipv4.ip_forward=1 --sysctl kernel.msgmax=9000 $IMAGE cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax", ("1", "9000")),
    Operation("run --shm-size", "run --rm --shm-size 3m $IMAGE sh -c 'df -k /dev/shm | tail -1 | tr -s \" \" | cut -d\" \" -f2'", ("3072",)),
    Operation("run --oom-score-adj", "run --rm --oom-score-adj 500 $IMAGE cat /proc/self/oom_score_adj", ("500",)),
    Operation("create, start -a", "cli create --name $C --network none $IMAGE sh -c 'echo hi; exit 6' >/dev/null; cli inspect -f '{{.State.Status}}' $C; fails 6 cli start -a $C", ("created", "hi", "exit code 6")),
    Operation("start again", "run $IMAGE sh -c 'echo once >>/root/n; wc -l </root/n'; cli start -a $C; cli start -a $C", ("1", "2", "3")),
)  # fmt: skip

CONTROL = (
    Operation("exec", "up; in_ echo hello; fails 42 in_ sh -c 'echo e >&2; exit 42'; in_ sh -c 'cat /proc/self/cgroup | grep -c 0::'", ("hello", "exit code 42", "! e", "1"), guest=True),
    Operation("exec -i", "up; printf 'a\\nb\\n' | cli exec -i $C wc -l", ("2",)),
    Operation("exec -it", "up; terminal --size 29x88 -- bash -c \"$(declare -f cli); cli exec -it $C sh -c 'test -t 0 && tty; until stty size | grep 29; do sleep .1; done; exit 7'\" || echo code $?", ("/dev/pts/.*", "29 88", "code 7"), guest=True),
    Operation("exec -it: what is typed", r"""up; terminal --say '# =echo $((6*7))\r' --say '42=exit 5\r' -- bash -c "$(declare -f cli); cli exec -it $C sh" || echo "code $?" """, ("42", "code 5")),
    Operation("exec -d", "up; cli exec -d $C sh -c 'echo did >/root/did' >/dev/null; until_ in_ test -s /root/did; in_ cat /root/did", ("did",)),
    Operation("exec -e, -w, -u", "up; cli exec -e X='y z' -w /tmp -u 1000:1001 $C sh -c 'echo $X; pwd; id -u; id -g'", ("y z", "/tmp", "1000", "1001")),
    Operation("exec --privileged", "up; in_ grep CapEff /proc/self/status; cli exec --privileged $C grep CapEff /proc/self/status", ("CapEff:\t0000000080.*|CapEff:\t00000000a8.*", "CapEff:\t000001f.*")),
    Operation("exec: command not found", "up; fails 127 in_ nosuchcommand", (".*executable file.*",)),
    Operation("exec: command that may not run", "up; fails 126 in_ /etc/passwd", ("exit code 126", "(?i).*permission denied.*")),
    Operation("exec: directory that is not there", "up; fails 127 cli exec -w /no/such $C true || fails 126 cli exec -w /no/such $C true"),
    Operation("exec: in one that is stopped", "up; cli stop -t 1 $C >/dev/null; in_ true || echo failed", ("failed",)),
    Operation("exec: 20 at once", "up; for i in {1..20}; do in_ echo x & done | sort | uniq -c; wait", (" *20 x",)),
    Operation("exec: nothing piles up", "up; for i in {1..10}; do in_ true; done; in_ ps -o comm", ("sleep",)),
    Operation("top", "up; cli top $C | wc -l; cli top $C -eo pid,comm | tail -n +2 | awk '{print $2}' | sort", ("sleep",), guest=True),
    Operation("stop", "up; cli stop -t 9 $C >/dev/null; state", ("exited 0",), guest=True),
    Operation("stop: one that does not listen", "run -d $IMAGE sh -c 'trap : TERM; while :; do sleep .2; done' >/dev/null; cli stop -t 1 $C >/dev/null 2>&1; state", ("exited 137",)),
    Operation("stop: one that is stopped", "up; cli stop -t 1 $C >/dev/null; cli stop $C >/dev/null; state", ("exited 0",)),
    Operation("kill", "up; cli kill $C >/dev/null; cli wait $C; state", ("137", "exited 137"), guest=True),
    Operation("kill -s", "run -d $IMAGE sh -c 'trap \"echo usr1\" USR1; trap \"exit 8\" HUP; echo up; while :; do sleep .1; done' >/dev/null; until_ says up; cli kill -s USR1 $C >/dev/null; until_ says usr1; cli kill -s 1 $C >/dev/null; cli wait $C; cli logs $C", ("8", "usr1")),
    Operation("kill: one that is stopped", "run $IMAGE true; cli kill $C && echo killed || echo failed", ("failed",)),
    Operation("restart", "run -d $IMAGE sh -c 'echo up; trap \"exit 0\" TERM; sleep 1000 & wait' >/dev/null; p=$(pid); cli restart -t 5 $C >/dev/null; [[ $p != $(pid) ]]; until_ eval \"[[ \\$(cli logs $C | grep -c up) == 2 ]]\"; cli inspect -f '{{.State.Status}}' $C", ("running",)),
    Operation("restart policy: on-failure", "run -d --restart on-failure:2 $IMAGE sh -c 'echo try; exit 3' >/dev/null; until_ eval \"[[ \\$(cli logs $C | grep -c try) == 3 ]]\"; sleep .7; cli logs $C; cli inspect -f '{{.RestartCount}} {{.State.ExitCode}}' $C", ("2 3",)),
    Operation("restart policy: always", "run -d --restart always $IMAGE sh -c 'echo try; sleep .2; exit 0' >/dev/null; until_ eval \"(( \\$(cli logs $C | grep -c try) >= 3 ))\"; cli rm -f $C >/dev/null; echo removed", ("removed",)),
    Operation("pause, unpause", "up; cli pause $C >/dev/null; cat $(cgroup)/cgroup.freeze; cli inspect -f '{{.State.Status}}' $C; in_ true && echo ran || echo failed; cli unpause $C >/dev/null; in_ echo back; cli inspect -f '{{.State.Status}}' $C",
              ("1", "paused", "failed", "back", "running"), guest=True),
    Operation("pause: kill, rm -f", "up; cli pause $C >/dev/null; cli rm -f $C >/dev/null; fails 1 cli container inspect $C >/dev/null 2>&1; up; cli pause $C >/dev/null; cli kill $C >/dev/null 2>&1 && cli wait $C || echo refused"),
    Operation("rm -f", "up; g=$(cgroup); p=$(pid); cli rm -f $C >/dev/null; until_ eval '[[ ! -e $g && ! -e /proc/$p ]]'; echo gone", ("gone",), guest=True),
    Operation("rm: one that runs", "up; cli rm $C >/dev/null 2>&1 && echo removed || echo refused", ("refused",)),
    Operation("rename, inspect", "up; cli rename $C $C.x; cli inspect -f '{{.Name}} {{.State.Running}}' $C.x | tr -d /; cli rm -f $C.x >/dev/null", ("<name>.x true",)),
    Operation("cp", "up; mine; echo in >f; cli cp f $C:/root/f >/dev/null 2>&1; in_ cat /root/f; in_ sh -c 'echo out >/root/g'; cli cp $C:/root/g g >/dev/null 2>&1; cat g", ("in", "out")),
    Operation("diff, commit", "run $IMAGE sh -c 'echo x >/root/new'; cli diff $C | sort; cli commit -q $C t/$C >/dev/null 2>&1; cli run --rm --network none t/$C cat /root/new; cli rmi -f t/$C >/dev/null 2>&1", ("A /root/new", "x")),
    Operation("export", "run $IMAGE sh -c 'echo x >/root/new'; cli export $C | tar -xO root/new", ("x",)),
    Operation("attach", "run -d -i $IMAGE sh -c 'read x; echo got $x; exit 4' >/dev/null; (echo hey; sleep 1) | fails 4 cli attach $C", ("got hey", "exit code 4")),
    Operation("ps", "up; cli ps --filter name=$C --format '{{.Names}} {{.Image}} {{.Status}}' | sed 's/Up .*/Up/;s,localhost/,,;s,docker.io/,,'", ("<name> test/busybox:1 Up",)),
    Operation("health check: healthy", "up --health-cmd 'test -e /root/ok' --health-interval 200ms --health-retries 1000; in_ touch /root/ok; until_ healthy; echo healthy", ("healthy",), guest=True),
    Operation("health check: unhealthy", "up --health-cmd 'echo sick; exit 1' --health-interval 200ms --health-retries 2; until_ unhealthy; echo unhealthy", ("unhealthy",)),
)  # fmt: skip
