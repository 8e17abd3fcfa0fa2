/*
 * A part of front.c: `delete` of a container that has ended, and whose files we all know, as
 * gpurun/engine/caller/lifecycle.py does it.  One with a journal of what was made in its rootfs (`created`) falls back.
 */

/* The names in the state directory: an unknown one, or a record of something more to undo, falls back. */
static void require_plain_files(const struct container *c)
{
	static const char *const plain[] = { ".", "..", "state", "config.json", "exec.fifo", "edits", "seccomp", "gpus" };
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

/* A scope goes with its last process; one that systemd still has a file for is active or has failed, and must be told. */
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

static int do_delete(const struct container *c)
{
	static const char *const files[] = { "config.json", "exec.fifo", "edits", "seccomp", "gpus", "state" };
	char path[PATH_BYTES];

	if (status(c) || strcmp(c->values[KEEPER], "0") != 0)
		defer_to_python();
	require_no_unit(c);
	require_no_hooks(c, (const char *const[]){ "\"poststop\"", NULL });
	require_no_oom_kill(c);
	require_plain_files(c);
	if (rmdir(c->values[CGROUP]) < 0 && errno != ENOENT)
		defer_to_python();
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
