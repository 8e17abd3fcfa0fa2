/*
 * A part of front.c: a container's journal, read as gpurun/ns/journal.py reads it.  What is unusual in it falls back.
 */

enum { JOURNAL_BYTES = 4 << 20, TRACES = 4096, CANCELS = 256, DIGEST_BYTES = 32 };

enum kind { DIRECTORY, FILE_MADE, LINK_MADE, TEMPORARY, REWRITTEN, TIMES, KINDS };
static const char *const kind_names[KINDS] = { "directory", "file", "link", "temporary", "rewritten", "times" };

struct trace {
	enum kind kind;
	bool cancelled;
	long long stamp;
	char *directory, *name; /* of its path; the whole path and nothing for TIMES */
	char *rest;
	size_t rest_bytes;
};

/* What a rewritten file was (Original in gpurun/ns/journal.py), and the digest that ours has. */
struct original {
	const char *digest, *kept, *content;
	size_t content_bytes;
	bool there;
	long long mode, uid, gid, mtime, inode;
};

static struct trace traces[TRACES];
static size_t trace_count;

/* A decimal number up to 64 bits, with a sign or without; anything else falls back.  `*end` is what follows. */
static long long whole_number(char *digits, char **end)
{
	errno = 0;
	if (!strchr("-0123456789", *digits) || *digits == '\0')
		defer_to_python();
	long long value = strtoll(digits, end, 10);
	if (errno || *end == digits)
		defer_to_python();
	return value;
}

/* The number at `*at`, which is followed by `after`; `*at` is then behind that. */
static long long next_number(char **at, char after)
{
	char *end;
	long long value = whole_number(*at, &end);

	if (*end != after)
		defer_to_python();
	*at = end + 1;
	return value;
}

/* The fields of the record at `at`, each ended by a zero byte, the last one by `*end`; NULL where there is no whole record. */
static char *fields_of(char *at, char *limit, char *fields[4], char **end)
{
	size_t digits = strspn(at, "0123456789");
	long long length = 0;

	if (digits == 0 || digits > 9 || at[digits] != ':')
		return NULL;
	for (size_t i = 0; i < digits; i++)
		length = length * 10 + (at[i] - '0');
	fields[0] = at + digits + 1;
	if (length >= limit - fields[0] || fields[0][length] != ',')
		return NULL;
	*end = fields[0] + length;
	**end = '\0';
	for (int i = 1; i < 4; i++) {
		char *zero = memchr(fields[i - 1], '\0', (size_t)(*end - fields[i - 1]));
		if (!zero)
			return NULL;
		fields[i] = zero + 1;
	}
	return *end + 1;
}

static void read_original(const struct trace *t, struct original *o)
{
	char *at = t->rest, *end = t->rest + t->rest_bytes, *zero;

	o->digest = at;
	if (strspn(at, "0123456789abcdef") != 2 * DIGEST_BYTES || at[2 * DIGEST_BYTES] != '\0')
		defer_to_python();
	at += 2 * DIGEST_BYTES + 1;
	if (at >= end || !(zero = memchr(at, '\0', (size_t)(end - at))))
		defer_to_python();
	o->there = strcmp(at, "-") != 0;
	if (!o->there)
		return;
	o->mode = next_number(&at, ' ');
	o->uid = next_number(&at, ' ');
	o->gid = next_number(&at, ' ');
	o->mtime = next_number(&at, ' ');
	o->inode = next_number(&at, ' ');
	o->kept = at;
	o->content = zero + 1;
	o->content_bytes = (size_t)(end - o->content);
}

static void add_trace(enum kind kind, long long stamp, char *path, char *rest, size_t rest_bytes)
{
	struct trace *t = &traces[trace_count];
	char *slash = strrchr(path, '/');
	struct original original;

	/* Another container's records, which are older, have been left to this one. */
	if (trace_count == TRACES || (trace_count > 0 && stamp < t[-1].stamp))
		defer_to_python();
	*t = (struct trace){ .kind = kind, .stamp = stamp, .directory = path, .name = path, .rest = rest, .rest_bytes = rest_bytes };
	trace_count++;
	if (kind == TIMES) {
		next_number(&rest, ' ');
		next_number(&rest, '\0');
		return;
	}
	if (slash) {
		*slash = '\0';
		t->name = slash + 1;
	} else
		t->directory = (char *)(uintptr_t)"";
	if (t->name[0] == '\0' || strcmp(t->name, ".") == 0 || strcmp(t->name, "..") == 0)
		defer_to_python();
	if (kind == REWRITTEN)
		read_original(t, &original);
}

/* Read the journal; returns the rootfs.  One that is not whole falls back. */
static const char *read_journal(const char *path)
{
	static char journal[JOURNAL_BYTES];
	static long long cancels[CANCELS];
	const char *rootfs = NULL;
	char *fields[4], *end;
	size_t cancel_count = 0;
	ssize_t size = read_file(path, journal, sizeof journal);

	if (size < 0)
		defer_to_python();
	for (char *at = journal; at < journal + size; ) {
		at = fields_of(at, journal + size, fields, &end);
		if (!at)
			defer_to_python();
		long long stamp = number(fields[1]);
		int kind = 0;
		while (kind < KINDS && strcmp(fields[0], kind_names[kind]) != 0)
			kind++;
		if (!rootfs) {
			if (strcmp(fields[0], "rootfs") != 0 || fields[2][0] != '/')
				defer_to_python();
			rootfs = fields[2];
		} else if (kind < KINDS)
			add_trace((enum kind)kind, stamp, fields[2], fields[3], (size_t)(end - fields[3]));
		else if (strcmp(fields[0], "cancelled") == 0 && cancel_count < CANCELS)
			cancels[cancel_count++] = number(fields[3]);
		else
			defer_to_python();
	}
	if (!rootfs)
		defer_to_python();
	for (size_t i = 0; i < trace_count; i++)
		for (size_t j = 0; j < cancel_count; j++)
			if (traces[i].stamp == cancels[j])
				traces[i].cancelled = true;
	return rootfs;
}

/* Whether the path is there; what cannot be told falls back. */
static bool is_there(const char *path, struct stat *found)
{
	if (stat(path, found) == 0)
		return true;
	if (errno != ENOENT && errno != ENOTDIR)
		defer_to_python();
	return false;
}

/* Another container that has the rootfs gets the journal, and its mounts must stay: falls back. */
static void require_rootfs_alone(const struct stat *rootfs, const char *root, const char *id)
{
	char path[PATH_BYTES], begin[PATH_BYTES + 128], *fields[4], *end;
	struct dirent *entry;
	struct stat theirs;
	DIR *directory = opendir(root);

	if (!directory)
		defer_to_python();
	while ((errno = 0, entry = readdir(directory))) {
		if (entry->d_name[0] == '.' || strcmp(entry->d_name, id) == 0)
			continue;
		int fd = open(text(path, "%s/%s/created", root, entry->d_name), O_RDONLY | O_CLOEXEC);
		if (fd < 0) {
			if (errno != ENOENT && errno != ENOTDIR)
				defer_to_python();
			continue;
		}
		ssize_t size = read(fd, begin, sizeof begin - 1);
		close(fd);
		if (size <= 0)
			defer_to_python();
		begin[size] = '\0';
		if (!fields_of(begin, begin + size, fields, &end) || strcmp(fields[0], "rootfs") != 0)
			defer_to_python();
		if (is_there(fields[2], &theirs) && theirs.st_dev == rootfs->st_dev && theirs.st_ino == rootfs->st_ino)
			defer_to_python();
	}
	if (errno)
		defer_to_python();
	closedir(directory);
}
