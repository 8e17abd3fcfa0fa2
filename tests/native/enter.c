// enter PROCS NAMESPACE DIRECTORY COMMAND...: executes COMMAND in the cgroup of the file PROCS, in the mount namespace of the
// file NAMESPACE, in DIRECTORY there. Its process is the one that it was called in (tests/native/bed.py).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int failed, const char *what)
{
    if (!failed)
        return;
    dprintf(2, "enter: %s: %s\n", what, strerror(errno));
    _exit(127);
}

int main(int count, char **words)
{
    if (count < 5)
        _exit(127);
    int procs = open(words[1], O_WRONLY | O_CLOEXEC);
    check(procs < 0 || write(procs, "0", 1) != 1, words[1]);
    close(procs);
    int namespace = open(words[2], O_RDONLY | O_CLOEXEC);
    check(namespace < 0 || setns(namespace, CLONE_NEWNS), words[2]);
    close(namespace);
    check(chdir(words[3]), words[3]);
    execvp(words[4], words + 4);
    check(1, words[4]);
}
