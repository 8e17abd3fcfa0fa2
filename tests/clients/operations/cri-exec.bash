### ExecSync: output, errors, exit code
# says: out
# says: ! err
# says: exit code 42
up
fails 42 in_ sh -c 'echo out; echo err >&2; exit 42'

### ExecSync: command not found
# says: .*executable file not found in \$PATH.*
up
fails 1 in_ nosuchcommand 2>&1

### ExecSync: a time limit
# says: .*DeadlineExceeded.*
# says: 0
up
fails 1 cri ExecSync container_id=$BOX timeout:=1 -- sleep 31.5 2>&1
until_ eval '! pgrep -f "^sleep 31.5"'
pgrep -fc '^sleep 31.5' || :

### ExecSync: much output
# says: 3000000
up
in_ sh -c 'head -c 3000000 /dev/zero | tr "\0" x' | wc -c

### ExecSync: in one that has ended
# says: .*is in CONTAINER_EXITED state.*
pod
boot c -- true
exited
fails 1 in_ true 2>&1

### ExecSync: 5 at once
# says: 5
up
for i in {1..5}; do in_ echo hi & done | grep -c hi
wait

### ExecSync: nothing piles up
# says: 2
up
for i in 1 2 3; do in_ true; done
until_ eval '[[ $(ctr tasks ps $BOX | tail -n +2 | wc -l) == 2 ]]'
ctr tasks ps $BOX | tail -n +2 | wc -l

### Exec: output, errors, exit code
# says: out
# says: ! err
# says: exit code 7
up
fails 7 cri Exec container_id=$BOX stdout:=true stderr:=true -- sh -c 'echo out; echo err >&2; exit 7'

### Exec: standard input
# says: got hello
up
echo hello | cri Exec container_id=$BOX stdin:=true stdout:=true stderr:=true -- sh -c 'read x; echo got $x'

### Exec: much data in
# says: 1000000
up
head -c 1000000 /dev/zero | cri Exec container_id=$BOX stdin:=true stdout:=true stderr:=true -- sh -c 'head -c 1000000 | wc -c'

### Exec: command not found
# says: .*executable file not found in \$PATH.*
up
fails 1 cri Exec container_id=$BOX stdout:=true stderr:=true -- nosuchcommand 2>&1

### Exec with a terminal
# says: 29 83\\r
# says: all\\r
# says: code 5
up
terminal --size 29x83 -- bash -c "cri Exec container_id=$BOX tty:=true stdin:=true stdout:=true -- sh -c 'until stty size 2>/dev/null | grep 29; do sleep .1; done; test -t 0 -a -t 1 -a -t 2 && echo all; exit 5'" || echo code $?

### Exec with a terminal: what is typed
# says: 42
# says: code 6
up
terminal --say '# =echo $((6*7))\r' --say '42=' --say '# =exit 6\r' -- bash -c "cri Exec container_id=$BOX tty:=true stdin:=true stdout:=true -- sh" || echo code $?

### Exec with a terminal: resized, interrupted
# says: 33 101
# says: caught
# says: code 9
up
terminal --size 20x60 --say 'ready=' --resize '=33x101' --say '33 101=\x03' -- bash -c "cri Exec container_id=$BOX tty:=true stdin:=true stdout:=true -- sh -c 'trap \"echo caught; exit 9\" INT; stty -echo; echo ready; until stty size 2>/dev/null | grep 33; do sleep .1; done; sleep 100 & wait'" || echo code $?

### Attach: output
# says: one
# says: ! two
pod
box c stdin:=true -- sh -c 'read x; echo one; sleep .1; echo two >&2; sleep .3'
start
echo go | cri Attach container_id=$BOX stdin:=true stdout:=true stderr:=true
exited
status

### Attach: a terminal
# says: stdout F .*got hello.*|.*got hello
# says: 30 90
# says: EXITED 4 Error
pod
box c stdin:=true tty:=true -- sh -c 'stty -echo; echo ready; until stty size 2>/dev/null | grep "30 90"; do sleep .1; done; read x; echo got $x; exit 4'
start
terminal --size 30x90 --say '30 90=hello\r' -- bash -c "cri Attach container_id=$BOX tty:=true stdin:=true stdout:=true"
exited
logs c
status

### Attach: twice
# says: first
# says: second
pod
box c stdin:=true -- sh -c 'read x; echo first; read x; echo second; sleep .1'
start
(sleep .3; echo a) | timeout 2 "$PYTHON" -m tests.clients.cri Attach container_id=$BOX stdin:=true stdout:=true || :
(sleep .3; echo b) | cri Attach container_id=$BOX stdin:=true stdout:=true

### standard input that ends with its first reader
# says: stdout F 5
pod
box c stdin:=true stdin_once:=true -- sh -c 'read x; echo ${#x}'
start
echo hello | cri Attach container_id=$BOX stdin:=true stdout:=true
exited
logs c

### a container with a terminal
# says: stdout F terminal
pod
boot c tty:=true -- sh -c 'test -t 0 -a -t 1 -a -t 2 && echo terminal'
exited
{ logs c && status; } | tr -d '\r'
