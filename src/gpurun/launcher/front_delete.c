/*
 * A part of front.c: `delete` of a container whose files we all know, as gpurun/engine/caller/delete.py does it.  One with
 * a journal of what was made in its rootfs (`created`) falls back.
 */

enum { END_MILLISECONDS = 1000 };	/* for the processes of a container to end that has been killed */
enum { EMPTY_MILLISECONDS = 100 };	/* for its cgroup to be empty after that */

/* The names in the state directory: an unknown one, or a record of something more to undo, falls back. */
static void require_plain_files(const struct container *c)
{
	static const char *const plain[] = { ".", "..", "state", "config.json", "exec.fifo", "edits", "seccomp", "gpus", PLAN_NAME };
	struct dirent *entry;
	DIR *directory = opendir(c->directory);

	if (!directory)
		defer_to_python();
	errno = 0;
	while ((entry = readdir(directory))) {
		size_t i = 0;
		while (i < sizeof plain / sizeof *plain && strcmp(entry->d_name, plain[i]) != 0)
			i++;
		if (i == sizeof plain / sizeof *plain)
			defer_to_python();
	}
	if (errno)
		defer_to_python();
	closedir(directory);
}

/* A scope goes with its last process; one that systemd still has a file for is left to the launcher. */
static void require_no_unit(const struct container *c)
{
	char path[PATH_BYTES];
	struct stat found;

	if (c->values[UNIT][0] == '\0')
		return;
	if (c->values[MANAGER][0] != '\0' || stat(c->values[CGROUP], &found) == 0 || errno != ENOENT ||
	    stat(text(path, "/run/systemd/transient/%s", c->values[UNIT]), &found) == 0 || errno != ENOENT)
		defer_to_python();
}

/* Remove what others have put into the state directory since we looked: a gpu attach may be at work. */
static void empty_once_more(const char *directory)
{
	char path[PATH_BYTES];
	struct dirent *entry;
	DIR *stream = opendir(directory);

	if (!stream)
		return;
	while ((entry = readdir(stream)))
		unlink(text(path, "%s/%s", directory, entry->d_name));
	closedir(stream);
}

/* That nothing but the process, the cgroup and the files that we know is to be taken away. */
static void require_plain(const struct container *c)
{
	if (strcmp(c->values[KEEPER], "0") != 0)
		defer_to_python();
	require_no_hooks(c, (const char *const[]){ "\"poststop\"", NULL });
	require_no_oom_kill(c);
	require_plain_files(c);
}

/* Kill the first process of the container, with which all of them end, and wait for it.  What takes longer falls back: to
 * the launcher it is a container that is just ending, or has ended. */
static void end_container(const struct container *c)
{
	long pidfd = syscall(SYS_pidfd_open, (pid_t)c->pid, 0);
	struct pollfd end = { .fd = (int)pidfd, .events = POLLIN };

	if (pidfd < 0 || !is_alive(c) || syscall(SYS_pidfd_send_signal, (int)pidfd, SIGKILL, NULL, 0) < 0)
		defer_to_python();
	if (poll(&end, 1, END_MILLISECONDS) != 1 || is_alive(c))
		defer_to_python();
	close((int)pidfd);
}

/* The cgroup of a container that has ended.  It is busy for the moment that the last process takes to leave it; one that
 * stays busy has other processes, or cgroups below it: the launcher's. */
static void remove_cgroup(const struct container *c)
{
	char path[PATH_BYTES], events[4096];
	ssize_t size;

	if (rmdir(c->values[CGROUP]) == 0 || errno == ENOENT)
		return;
	if (errno != EBUSY || strcmp(c->values[PRIVATE_PID], "1") != 0)
		defer_to_python();
	int fd = open(text(path, "%s/cgroup.events", c->values[CGROUP]), O_RDONLY | O_CLOEXEC);
	struct pollfd change = { .fd = fd, .events = POLLPRI }; /* the kernel says when the file changes */
	while (fd >= 0 && (size = pread(fd, events, sizeof events - 1, 0)) > 0) {
		events[size] = '\0';
		if (strstr(events, "populated 0") || poll(&change, 1, EMPTY_MILLISECONDS) <= 0)
			break;
	}
	if (fd >= 0)
		close(fd);
	if (rmdir(c->values[CGROUP]) < 0 && errno != ENOENT)
		defer_to_python();
}

static int do_delete(const struct container *c, bool force)
{
	static const char *const files[] = { "config.json", "exec.fifo", "edits", "seccomp", "gpus", PLAN_NAME, "state" };
	char path[PATH_BYTES];
	const char *now = status(c);

	require_plain(c);
	if (now) {
		bool may_end = strcmp(now, "created") == 0 || (force && strcmp(now, "running") == 0);
		/* A scope goes when systemd has seen its last process end, for which the launcher waits. */
		if (!may_end || strcmp(c->values[PRIVATE_PID], "1") != 0 || c->values[UNIT][0] != '\0')
			defer_to_python();
		end_container(c);
		require_plain(c); /* it ran until now: a hook of its own was none, but memory may have run out, or a GPU have come */
	}
	require_no_unit(c);
	remove_cgroup(c);
	/* The state last: until then the launcher can go on with what is left. */
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (unlink(text(path, "%s/%s", c->directory, files[i])) < 0 && errno != ENOENT)
			defer_to_python();
	for (int i = 0; rmdir(c->directory) < 0 && errno != ENOENT; i++) {
		if (errno != ENOTEMPTY || i == REMOVE_ATTEMPTS)
			defer_to_python();
		empty_once_more(c->directory);
	}
	return 0;
}
