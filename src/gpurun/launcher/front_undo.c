/*
 * A part of front.c: what a container's journal says was made in its rootfs is taken back, as gpurun/ns/journal_store.py and
 * gpurun/ns/undo.py do it, in the usual case.
 *
 * Every path in a rootfs is hostile.  A directory is opened from the rootfs' descriptor by openat2(2), through no link and onto
 * no other mount; what is taken away is a name in it, and no name is followed.  No file is opened before it is known to be one.
 *
 * Until the whole journal has been understood nothing is changed.  What is unusual or fails later is the launcher's as well:
 * undoing can be done again, whatever was taken back is not there any more, and directories that we have changed get their
 * times before, which is how it tells those that nobody else has changed.
 */

enum { DIRECTORIES = 128 };

static struct {
	const char *path;
	int fd;
	long long now, before;
	bool unchanged; /* but by us */
} directories[DIRECTORIES];
static size_t directory_count;
static int root_fd = -1, parent_fd = -1; /* the rootfs, and the directory in it that is being looked at */

/* ---- in the rootfs -------------------------------------------------------------------------------------------------- */

static void set_time(int fd, const char *name, long long mtime)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = mtime / 1000000000, .tv_nsec = mtime % 1000000000 } };

	if (times[1].tv_nsec < 0) { /* before 1970 */
		times[1].tv_sec--;
		times[1].tv_nsec += 1000000000;
	}
	/* A directory may have been taken away, or be another user's: then it is a courtesy. */
	if (utimensat(fd, name, times, 0) < 0 && errno != ENOENT && (geteuid() == 0 || (errno != EPERM && errno != EACCES)))
		defer_to_python();
}

static void give_times_back(void)
{
	for (size_t i = 0; i < directory_count; i++)
		if (directories[i].unchanged)
			set_time(directories[i].fd, ".", directories[i].before);
}

/* The launcher is to do the rest; it may need every descriptor there can be. */
static _Noreturn void give_up(void)
{
	give_times_back();
	for (size_t i = 0; i < directory_count; i++)
		if (directories[i].fd >= 0)
			close(directories[i].fd);
	if (root_fd >= 0)
		close(root_fd);
	if (parent_fd >= 0)
		close(parent_fd);
	defer_to_python();
}

/* An O_PATH descriptor of what is at `path` below `at`, on the same mount; -1 when it went away or became something else. */
static int open_on_root(int at, const char *path, int flags, unsigned long long resolve)
{
	struct open_how how = { .flags = (unsigned long long)flags | O_PATH | O_CLOEXEC, .resolve = resolve | RESOLVE_BENEATH | RESOLVE_NO_XDEV };
	int fd = (int)syscall(SYS_openat2, at, *path ? path : ".", &how, sizeof how);

	if (fd < 0 && errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != EXDEV)
		give_up();
	return fd;
}

static int open_directory(const char *path)
{
	return open_on_root(root_fd, path, O_DIRECTORY, RESOLVE_NO_SYMLINKS);
}

/* The directories that only we have changed: the last change first, as there may be several. */
static void look_at_times(void)
{
	for (size_t i = trace_count; i-- > 0;) {
		const struct trace *t = &traces[i];
		char *at = t->rest;
		struct stat found;
		size_t d = 0;

		if (t->kind != TIMES || t->cancelled)
			continue;
		long long before = next_number(&at, ' '), after = next_number(&at, '\0');
		while (d < directory_count && strcmp(directories[d].path, t->directory) != 0)
			d++;
		if (d == directory_count) {
			if (d == DIRECTORIES)
				give_up();
			directories[d].path = t->directory;
			directories[d].fd = open_directory(t->directory);
			directories[d].now = -1;
			directory_count++;
			if (directories[d].fd >= 0) {
				if (fstat(directories[d].fd, &found) < 0)
					give_up();
				directories[d].now = (long long)found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec;
			}
		}
		if (directories[d].fd >= 0 && (directories[d].now == after || directories[d].now == before)) {
			directories[d].now = directories[d].before = before;
			directories[d].unchanged = true;
		}
	}
}

/* That it is gone by now, or in use, is as good as done; any other failure is told by the launcher. */
static void done(int result)
{
	if (result < 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
		give_up();
}

/* The file, opened for reading; -1 for what is none, which is never opened. */
static int open_regular(int parent, const char *name, struct stat *found)
{
	char path[64];
	int seen = open_on_root(parent, name, O_NOFOLLOW, 0), fd = -1;

	if (seen < 0)
		return -1;
	if (fstat(seen, found) < 0)
		give_up();
	if (S_ISREG(found->st_mode)) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", seen);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || fstat(fd, found) < 0) {
			close(seen);
			give_up();
		}
	}
	close(seen);
	return fd;
}

#include "front_blake2b.c"

/* ---- taking back ---------------------------------------------------------------------------------------------------- */

/* Whether the file is still what we have written. */
static bool is_ours(int fd, off_t size, const char *digest)
{
	static unsigned char data[64 << 10];
	struct blake2b b;
	char hex[2 * DIGEST_BYTES + 1];
	off_t have = 0;
	ssize_t got;

	blake2b_begin(&b);
	while ((got = read(fd, data, sizeof data)) > 0 && (have += got) <= size)
		blake2b_add(&b, data, (size_t)got);
	if (got < 0)
		give_up();
	blake2b_end(&b, hex);
	return have == size && strcmp(hex, digest) == 0;
}

/* Whether the open file is the one that was kept, unchanged. */
static bool is_original(int fd, const struct stat *found, const struct original *o)
{
	static char data[64 << 10];
	size_t have = 0;
	ssize_t got;

	if (found->st_ino != (ino_t)o->inode || found->st_mode != (S_IFREG | (mode_t)o->mode))
		return false;
	if (o->uid >= 0 && (found->st_uid != (uid_t)o->uid || found->st_gid != (gid_t)o->gid))
		return false;
	while ((got = read(fd, data, sizeof data)) > 0) {
		if ((size_t)got > o->content_bytes - have || memcmp(data, o->content + have, (size_t)got) != 0)
			return false;
		have += (size_t)got;
	}
	if (got < 0)
		give_up();
	return have == o->content_bytes;
}

/* Give the file that was there its name again; where it was not kept, or is another by now, the launcher makes it anew. */
static void give_back(int parent, const struct trace *t, off_t size)
{
	struct original o = { .there = false };
	struct stat found;
	int fd = open_regular(parent, t->name, &found);

	read_original(t, &o);
	if (fd < 0)
		return;
	bool ours = found.st_size == size && is_ours(fd, size, o.digest);
	close(fd);
	if (!ours)
		return;
	if (!o.there) {
		done(unlinkat(parent, t->name, 0));
		return;
	}
	if (o.kept[0] == '\0' || (fd = open_regular(parent, o.kept, &found)) < 0 || !is_original(fd, &found, &o))
		give_up();
	if ((long long)found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec != o.mtime)
		give_up();
	close(fd);
	done(renameat(parent, o.kept, parent, t->name));
}

/* What somebody has changed is his: a file with something in it, a directory in use, a link that says something else. */
static void take_back(int parent, const struct trace *t)
{
	char link[PATH_BYTES];
	struct stat found;

	if (fstatat(parent, t->name, &found, AT_SYMLINK_NOFOLLOW) < 0) {
		done(-1);
		return;
	}
	switch (t->kind) {
	case DIRECTORY:
		if (S_ISDIR(found.st_mode))
			done(unlinkat(parent, t->name, AT_REMOVEDIR));
		break;
	case LINK_MADE:
		if (S_ISLNK(found.st_mode)) {
			ssize_t size = readlinkat(parent, t->name, link, sizeof link);
			if (size < 0)
				done(-1);
			else if ((size_t)size == t->rest_bytes && memcmp(link, t->rest, t->rest_bytes) == 0)
				done(unlinkat(parent, t->name, 0));
		}
		break;
	case TEMPORARY:
		if (S_ISREG(found.st_mode))
			done(unlinkat(parent, t->name, 0));
		break;
	case REWRITTEN:
		if (S_ISREG(found.st_mode))
			give_back(parent, t, found.st_size);
		break;
	case FILE_MADE:
		if (!S_ISDIR(found.st_mode) && !S_ISLNK(found.st_mode) && (!S_ISREG(found.st_mode) || found.st_size == 0))
			done(unlinkat(parent, t->name, 0));
		break;
	case TIMES:
	case KINDS:
		break;
	}
}

/* Take back what the journal says, from the last to the first.  The journal itself goes when all of it is done. */
static void undo(const char *rootfs)
{
	const char *opened = NULL;

	root_fd = open(rootfs, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root_fd < 0)
		defer_to_python();
	look_at_times();
	for (size_t i = trace_count; i-- > 0;) {
		const struct trace *t = &traces[i];
		if (t->kind == TIMES || t->cancelled)
			continue;
		if (!opened || strcmp(opened, t->directory) != 0) {
			if (parent_fd >= 0)
				close(parent_fd);
			parent_fd = -1;
			opened = t->directory;
			parent_fd = open_directory(opened);
		}
		if (parent_fd >= 0)
			take_back(parent_fd, t);
	}
	give_times_back();
}
