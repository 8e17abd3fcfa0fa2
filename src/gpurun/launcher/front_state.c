/*
 * A part of front.c: a container's state file, and what the kernel says of its process and its cgroup, as
 * gpurun/engine/state.py and gpurun/cgroup/control.py read them.
 */

/* STATE_FIELDS(X) is X(ID, "id") X(BUNDLE, "bundle") ...: from State in gpurun/engine/state.py, by the build. */
#define FIELD(number, name) number,
#define NAME(number, name) name,
enum field { STATE_FIELDS(FIELD) FIELDS };
static const char *const field_names[] = { STATE_FIELDS(NAME) };

/* What State has when these commands were written, in any order.  Does the build stop here, for another field or one less?
   Think of what that means to them, then name it. */
#define KNOWN(number, name) KNOWN_##number,
enum {
	KNOWN_ID, KNOWN_BUNDLE, KNOWN_ROOTFS, KNOWN_CGROUP, KNOWN_PRIVATE_PID, KNOWN_PID, KNOWN_START_TIME, KNOWN_CREATED,
	KNOWN_ANNOTATIONS, KNOWN_UNIT, KNOWN_SESSION_KEYRING, KNOWN_MANAGER, KNOWN_KEEPER, KNOWN_OOM_KILLS, KNOWN_STREAMS,
	KNOWN_OWNER, KNOWN_FIELDS
};
_Static_assert(sizeof (int[]){ STATE_FIELDS(KNOWN) } / sizeof(int) == KNOWN_FIELDS, "State has not all of the known fields");

struct container {
	char directory[PATH_BYTES];
	char *values[FIELDS];
	long long pid, start_time;
};

static char state_text[STATE_BYTES];

/* Each field exactly once, one `name=value` a line, and nothing else: all that gpurun writes. */
static void parse_state(char *data, size_t size, struct container *c)
{
	if (size == 0 || data[size - 1] != '\n' || memchr(data, '\0', size))
		defer_to_python();
	for (char *line = data; line < data + size;) {
		char *end = strchr(line, '\n'); /* there is one: the text ends with it */
		char *equals = memchr(line, '=', (size_t)(end - line));
		int field = 0;

		if (!equals)
			defer_to_python();
		*end = *equals = '\0';
		while (field < FIELDS && strcmp(line, field_names[field]) != 0)
			field++;
		if (field == FIELDS || c->values[field])
			defer_to_python();
		c->values[field] = equals + 1;
		line = end + 1;
	}
	for (int field = 0; field < FIELDS; field++)
		if (!c->values[field])
			defer_to_python();
	c->pid = number(c->values[PID]);
	c->start_time = number(c->values[START_TIME]);
	/* Not needed for every command, but a state that is damaged is one for all of them. */
	if (c->pid > INT32_MAX || number(c->values[KEEPER]) > INT32_MAX)
		defer_to_python();
	if (strcmp(c->values[OOM_KILLS], "-1") != 0)
		number(c->values[OOM_KILLS]);
}

static void load(const char *root, const char *id, struct container *c)
{
	char path[PATH_BYTES];
	struct stat found;

	text(c->directory, "%s/%s", root, id);
	if (lstat(c->directory, &found) < 0 || !S_ISDIR(found.st_mode) || !is_own(&found, c->directory))
		defer_to_python(); /* which says what is wrong with another user's directory, or with their link to ours */
	parse_state(state_text, read_regular(text(path, "%s/state", c->directory), state_text, sizeof state_text, false), c);
	if (strcmp(c->values[ID], id) != 0)
		defer_to_python();
}

/* Whether the container's first process is there, is the one that was recorded, and is no zombie. */
static bool is_alive(const struct container *c)
{
	char path[PATH_BYTES], stat[4096];
	char *at, state;
	unsigned long long start;

	ssize_t size = read_file(text(path, "/proc/%lld/stat", c->pid), stat, sizeof stat);
	if (size < 0) {
		if (errno == ENOENT || errno == ESRCH)
			return false;
		defer_to_python();
	}
	at = strrchr(stat, ')'); /* the program's name before it may hold anything */
	/* state, 18 fields that do not matter, starttime: the fields 3 to 22 of proc_pid_stat(5) */
	if (!at || sscanf(at, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state, &start) != 2)
		defer_to_python();
	return start == (unsigned long long)c->start_time && state != 'Z' && state != 'X';
}

/* Whether the file of the container's cgroup is there, and then what is in it; another error falls back. */
static bool read_cgroup(const struct container *c, const char *name, char *into, size_t bytes)
{
	char path[PATH_BYTES];

	if (read_file(text(path, "%s/%s", c->values[CGROUP], name), into, bytes) >= 0)
		return true;
	if (errno != ENOENT && errno != ENODEV && errno != ENOTDIR)
		defer_to_python();
	return false;
}

static bool is_frozen(const struct container *c)
{
	char events[4096];

	return read_cgroup(c, "cgroup.events", events, sizeof events) && strstr(events, "frozen 1");
}

/* "created", "running" or "paused"; NULL for one that has stopped.  One that is being created falls back. */
static const char *status(const struct container *c)
{
	char path[PATH_BYTES];
	struct stat found;

	if (c->values[CREATED][0] == '\0')
		defer_to_python();
	if (!is_alive(c))
		return NULL;
	if (is_frozen(c))
		return "paused";
	if (stat(text(path, "%s/exec.fifo", c->directory), &found) == 0)
		return "created";
	if (errno != ENOENT)
		defer_to_python();
	return "running";
}

static bool braces_match(const char *text, size_t size)
{
	size_t opened = 0, closed = 0;

	for (size_t i = 0; i < size; i++) {
		opened += text[i] == '{';
		closed += text[i] == '}';
	}
	return opened > 0 && opened == closed;
}

/* A container whose saved config speaks of such hooks may have some to run now, and so may one with letters that are escaped
 * (\u and a number): any name can be written so. */
static void require_no_hooks(const struct container *c, const char *const *quoted)
{
	static char config[CONFIG_BYTES];
	char path[PATH_BYTES];

	size_t size = read_regular(text(path, "%s/config.json", c->directory), config, sizeof config, false);
	if (!braces_match(config, size))
		defer_to_python(); /* a text that was cut off has lost the hooks that delete would have to run */
	if (memmem(config, size, "\\u", 2))
		defer_to_python();
	for (; *quoted; quoted++)
		if (memmem(config, size, *quoted, strlen(*quoted)))
			defer_to_python();
}
