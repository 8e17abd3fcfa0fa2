/*
 * The compiled front of gpurun: `state`, `start`, `kill` and `delete` of a container of which nothing special is known.
 *
 * It is never needed.  It does what gpurun/engine/lifecycle.py and gpurun/commands/inspect.py do, from the same files, for
 * the plainest form of these four commands, and becomes the launcher that is appended to it (execve of the interpreter line
 * at byte BASE) for every other command, for every container with something more to do, and on any doubt or error: so every
 * rare path and every error text is in Python only.  For `create`, `run` and `exec` it starts the interpreter that will make
 * the container's process while the launcher's own starts.  The rule that makes this safe: until all doubts are settled nothing is
 * changed, and what is changed first leaves a container that the launcher can go on with.
 *
 * Nothing is allocated but the launcher's words and what the C library needs to read a directory; all buffers have a fixed
 * size, and what does not fit is a doubt.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/mount.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif

#define LINE_MAX_BYTES 512 /* the launcher's first line and comment take no more */

enum { PATH_BYTES = 4096, STATE_BYTES = 256 << 10, CONFIG_BYTES = 4 << 20, OUTPUT_BYTES = 320 << 10 };

static char **arguments;
static int argument_count;

/* Start the interpreter that is to make the container's process, of which start_child in gpurun/engine/child.py tells: sealed,
 * with its end of a socket.  Returns what the launcher is told of it, NULL when there is none: then the launcher starts one. */
static const char *start_child(char *python, char *code, const char *self, const char *entry)
{
	static char option[64], file[16], socket[16];
	struct mount_attr sealed = { .attr_set = MOUNT_ATTR_RDONLY };
	char *const words[] = { python, "-ISBc", code, file, (char *)(uintptr_t)entry, socket, NULL }, *const empty[] = { NULL };
	int tree = (int)syscall(SYS_open_tree, AT_FDCWD, python, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	int fd = open(self, O_RDONLY | O_CLOEXEC), ends[2];
	volatile bool failed = false; /* set by the child, which has our memory until it execs */

	if (tree < 0 || fd < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &sealed, sizeof sealed) < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return NULL;
	snprintf(file, sizeof file, "%d", fd);
	snprintf(socket, sizeof socket, "%d", ends[1]);
	pid_t pid = vfork();
	if (pid == 0) {
		if (syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC) == 0 && fcntl(fd, F_SETFD, 0) == 0 &&
		    fcntl(ends[1], F_SETFD, 0) == 0)
			syscall(SYS_execveat, tree, "", words, empty, AT_EMPTY_PATH);
		failed = true;
		_exit(1);
	}
	close(tree);
	close(fd);
	close(ends[1]);
	if (pid < 0 || failed || fcntl(ends[0], F_SETFD, 0) < 0) {
		close(ends[0]);
		if (pid > 0)
			waitpid(pid, NULL, 0);
		return NULL;
	}
	snprintf(option, sizeof option, CHILD_OPTION "=%d,%d", (int)pid, ends[0]);
	return option;
}

/* Become the launcher, with the arguments that we were given; with `entry`, a child that will call it is started before. */
static _Noreturn void launcher_with(const char *entry)
{
	static char header[LINE_MAX_BYTES + 1];
	const char *self = (const char *)getauxval(AT_EXECFN);
	char **words = calloc((size_t)argument_count + 5, sizeof *words);
	int fd = self ? open(self, O_RDONLY | O_CLOEXEC) : -1, count = 0;

	if (fd >= 0 && words && pread(fd, header, LINE_MAX_BYTES, BASE) > 0) {
		/* "#!python -ISBc<code>", a comment, "# child: <code>": see build.py */
		char *end = strchr(header, '\n'), *blank = strchr(header, ' ');
		char *code = strstr(header, "\n# child: "), *code_end = code ? strchr(code + 1, '\n') : NULL;

		if (end && blank && blank < end && code_end && header[0] == '#' && header[1] == '!') {
			*end = *blank = *code_end = '\0';
			close(fd);
			const char *child = entry ? start_child(header + 2, code + strlen("\n# child: "), self, entry) : NULL;
			words[count++] = header + 2;
			if (child) {
				words[count++] = "-X";
				words[count++] = (char *)(uintptr_t)child;
			}
			words[count++] = blank + 1;
			words[count++] = (char *)(uintptr_t)self;
			for (int i = 1; i < argument_count; i++)
				words[count++] = arguments[i];
			execv(words[0], words);
		}
	}
	dprintf(2, "gpurun: cannot become the launcher in %s: %s\n", self ? self : "this program", strerror(errno));
	_exit(1);
}

static _Noreturn void launcher(void)
{
	launcher_with(NULL);
}

/* A path made of parts; one that is too long is a doubt. */
__attribute__((format(printf, 2, 3))) static const char *text(char *into, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	int length = vsnprintf(into, PATH_BYTES, format, list);
	va_end(list);
	if (length < 0 || length >= PATH_BYTES)
		launcher();
	return into;
}

/* The size of the content of the file, which is in `into`, ended by a zero byte; -1 with errno.  Too long is a doubt. */
static ssize_t read_file(const char *path, char *into, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	ssize_t got = 1;

	if (fd < 0)
		return -1;
	while (have < bytes && (got = read(fd, into + have, bytes - have)) > 0)
		have += (size_t)got;
	int failed = got < 0 ? errno : 0;
	close(fd);
	if (have == bytes)
		launcher();
	errno = failed;
	into[have] = '\0';
	return failed ? -1 : (ssize_t)have;
}

/* A decimal number without sign or blanks, of at most 18 digits; anything else is a doubt. */
static long long number(const char *digits)
{
	long long value = 0;
	size_t length = strspn(digits, "0123456789");

	if (length == 0 || length > 18 || digits[length] != '\0')
		launcher();
	for (size_t i = 0; i < length; i++)
		value = value * 10 + (digits[i] - '0');
	return value;
}

/* ---- the state file ------------------------------------------------------------------------------------------------- */

/* In the order of State in gpurun/engine/state.py, from where the build has the names. */
enum field {
	ID, BUNDLE, ROOTFS, CGROUP, PRIVATE_PID, PID, START_TIME, CREATED, ANNOTATIONS, UNIT, SESSION_KEYRING, MANAGER, KEEPER,
	OOM_KILLS, STREAMS, FIELDS
};
static const char *const field_names[] = { STATE_FIELDS };
_Static_assert(sizeof field_names / sizeof *field_names == FIELDS,
	       "State has other fields: think of what they mean to the four commands, then name them here");

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
		launcher();
	for (char *line = data; line < data + size;) {
		char *end = strchr(line, '\n'); /* there is one: the text ends with it */
		char *equals = memchr(line, '=', (size_t)(end - line));
		int field = 0;

		if (!equals)
			launcher();
		*end = *equals = '\0';
		while (field < FIELDS && strcmp(line, field_names[field]) != 0)
			field++;
		if (field == FIELDS || c->values[field])
			launcher();
		c->values[field] = equals + 1;
		line = end + 1;
	}
	for (int field = 0; field < FIELDS; field++)
		if (!c->values[field])
			launcher();
	c->pid = number(c->values[PID]);
	c->start_time = number(c->values[START_TIME]);
}

static void load(const char *root, const char *id, struct container *c)
{
	char path[PATH_BYTES];

	text(c->directory, "%s/%s", root, id);
	ssize_t size = read_file(text(path, "%s/state", c->directory), state_text, sizeof state_text);
	if (size < 0)
		launcher();
	parse_state(state_text, (size_t)size, c);
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
		launcher();
	}
	at = strrchr(stat, ')'); /* the program's name before it may hold anything */
	/* state, 18 fields that do not matter, starttime: the fields 3 to 22 of proc_pid_stat(5) */
	if (!at || sscanf(at, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state, &start) != 2)
		launcher();
	return start == (unsigned long long)c->start_time && state != 'Z' && state != 'X';
}

static bool is_frozen(const struct container *c)
{
	char path[PATH_BYTES], events[4096];

	return read_file(text(path, "%s/cgroup.events", c->values[CGROUP]), events, sizeof events) >= 0 &&
	       strstr(events, "frozen 1");
}

/* "created", "running" or "paused"; NULL for one that has stopped.  One that is being created is a doubt. */
static const char *status(const struct container *c)
{
	char path[PATH_BYTES];
	struct stat found;

	if (c->values[CREATED][0] == '\0')
		launcher();
	if (!is_alive(c))
		return NULL;
	if (is_frozen(c))
		return "paused";
	if (stat(text(path, "%s/exec.fifo", c->directory), &found) == 0)
		return "created";
	if (errno != ENOENT)
		launcher();
	return "running";
}

/* A container whose saved config speaks of hooks may have some to run now. */
static void without_hooks(const struct container *c)
{
	static char config[CONFIG_BYTES];
	char path[PATH_BYTES];

	ssize_t size = read_file(text(path, "%s/config.json", c->directory), config, sizeof config);
	if (size < 0 || memmem(config, (size_t)size, "\"hooks\"", 7))
		launcher();
}

/* ---- the commands --------------------------------------------------------------------------------------------------- */

/* Whether the text is the same as JSON, between its quotes or (`json`) as it is. */
static void printable(const char *value, bool json)
{
	for (const char *at = value; *at; at++)
		if (*at < ' ' || *at > '~' || (!json && (*at == '"' || *at == '\\')))
			launcher();
}

static int do_state(const struct container *c)
{
	static char out[OUTPUT_BYTES];
	static const enum field shown[] = { ID, BUNDLE, ROOTFS, CREATED, ANNOTATIONS };
	const char *now = status(c);

	if (!now)
		launcher(); /* it may have to say that memory ran out */
	for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
		printable(c->values[shown[i]], shown[i] == ANNOTATIONS);
	bool annotated = strcmp(c->values[ANNOTATIONS], "{}") != 0;
	int size = snprintf(out, sizeof out,
			    "{\n  \"ociVersion\": \"" SPEC_VERSION "\",\n  \"id\": \"%s\",\n  \"pid\": %lld,\n  \"status\": \"%s\",\n"
			    "  \"bundle\": \"%s\",\n  \"rootfs\": \"%s\",\n  \"created\": \"%s\"%s%s\n}\n",
			    c->values[ID], c->pid, now, c->values[BUNDLE], c->values[ROOTFS], c->values[CREATED],
			    annotated ? ",\n  \"annotations\": " : "", annotated ? c->values[ANNOTATIONS] : "");
	if (size < 0 || (size_t)size >= sizeof out)
		launcher();
	for (int at = 0; at < size;) {
		ssize_t wrote = write(1, out + at, (size_t)(size - at));
		if (wrote < 0)
			launcher();
		at += (int)wrote;
	}
	return 0;
}

static int do_start(const struct container *c)
{
	char path[PATH_BYTES];
	const char *now = status(c);

	if (!now || strcmp(now, "created") != 0 || getenv("NOTIFY_SOCKET"))
		launcher();
	without_hooks(c);
	signal(SIGPIPE, SIG_IGN);
	int fifo = open(text(path, "%s/exec.fifo", c->directory), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	/* Of two starts at once, the one that removes the FIFO is the one. */
	if (fifo < 0 || unlink(path) < 0 || write(fifo, "0", 1) != 1)
		launcher();
	return 0;
}

/* The number of a signal as shims give it; other names are a doubt. */
static int signal_number(const char *word)
{
	static const struct {
		const char *name;
		int number;
	} known[] = { { "HUP", 1 }, { "INT", 2 }, { "QUIT", 3 }, { "KILL", 9 }, { "USR1", 10 }, { "USR2", 12 }, { "TERM", 15 } };

	if (*word >= '0' && *word <= '9') {
		long long given = number(word);
		if (given > 64)
			launcher();
		return (int)given;
	}
	if (strncmp(word, "SIG", 3) == 0)
		word += 3;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(word, known[i].name) == 0)
			return known[i].number;
	launcher();
}

static int do_kill(const struct container *c, const char *word)
{
	int wanted = word ? signal_number(word) : SIGTERM;

	if (c->pid == 0 || (wanted == SIGKILL && strcmp(c->values[PRIVATE_PID], "1") != 0))
		launcher();
	long pidfd = syscall(SYS_pidfd_open, (pid_t)c->pid, 0);
	/* Looked at again after opening: pids are used again. */
	if (pidfd < 0 || !is_alive(c) || syscall(SYS_pidfd_send_signal, (int)pidfd, wanted, NULL, 0) < 0)
		launcher();
	return 0;
}

/* The names in the state directory: a stranger, or a record of something else to undo, is a doubt. */
static void only_plain_files(const struct container *c)
{
	static const char *const plain[] = { ".", "..", "state", "config.json", "exec.fifo", "edits", "seccomp" };
	struct dirent *entry;
	DIR *directory = opendir(c->directory);

	if (!directory)
		launcher();
	errno = 0;
	while ((entry = readdir(directory))) {
		size_t i = 0;
		while (i < sizeof plain / sizeof *plain && strcmp(entry->d_name, plain[i]) != 0)
			i++;
		if (i == sizeof plain / sizeof *plain)
			launcher();
	}
	if (errno)
		launcher();
	closedir(directory);
}

/* That the kernel has killed in the container for want of memory is said when it goes. */
static void memory_was_enough(const struct container *c)
{
	char path[PATH_BYTES], events[512];

	if (read_file(text(path, "%s/memory.events", c->values[CGROUP]), events, sizeof events) >= 0 &&
	    !strstr(events, "\noom_kill 0\n"))
		launcher();
}

static int do_delete(const struct container *c)
{
	static const char *const files[] = { "config.json", "exec.fifo", "edits", "seccomp", "state" };
	char path[PATH_BYTES];

	if (status(c) || c->values[UNIT][0] != '\0' || strcmp(c->values[KEEPER], "0") != 0)
		launcher();
	without_hooks(c);
	only_plain_files(c);
	memory_was_enough(c);
	if (rmdir(c->values[CGROUP]) < 0 && errno != ENOENT)
		launcher();
	/* The state last: until then the launcher can go on with what is left. */
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (unlink(text(path, "%s/%s", c->directory, files[i])) < 0 && errno != ENOENT)
			launcher();
	if (rmdir(c->directory) < 0 && errno != ENOENT)
		launcher();
	return 0;
}

/* ---- the command line ----------------------------------------------------------------------------------------------- */

/* An absolute path with nothing in it to resolve. */
static bool is_clean(const char *path)
{
	size_t length = strlen(path);

	if (path[0] != '/' || length < 2 || path[length - 1] == '/')
		return false;
	for (const char *at = path; (at = strchr(at, '/')); at++)
		if (at[1] == '/' || (at[1] == '.' && (at[2] == '/' || at[2] == '\0' || (at[2] == '.' && (at[3] == '/' || at[3] == '\0')))))
			return false;
	return true;
}

/* An id that may name a directory of the store. */
static bool is_id(const char *id)
{
	size_t length = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-.");

	return length > 0 && length < 256 && id[length] == '\0' && id[0] != '.' && id[0] != '-';
}

/* The value of the option `name` if argument `*at` is that, given as `--name value` or `--name=value`. */
static const char *option(const char *name, int *at)
{
	size_t length = strlen(name);
	const char *word = arguments[*at];

	if (strncmp(word, name, length) != 0)
		return NULL;
	if (word[length] == '=')
		return word + length + 1;
	return word[length] == '\0' && *at + 1 < argument_count ? arguments[++*at] : NULL;
}

static const char *default_root(void)
{
	const char *user = getenv("USER"), *runtime = getenv("XDG_RUNTIME_DIR");

	if (runtime && *runtime && !(geteuid() == 0 && user && strcmp(user, "root") == 0))
		launcher();
	return "/run/gpurun";
}

/* What the child of this command begins with, NULL for one that needs none or that is handed descriptors for it. */
static const char *child_entry(const char *command)
{
	for (int i = 1; i < argument_count; i++)
		if (strstr(arguments[i], "preserve-fds"))
			return NULL;
	if (getenv("LISTEN_FDS"))
		return NULL;
	if (strcmp(command, "create") == 0 || strcmp(command, "run") == 0)
		return INIT_ENTRY;
	return strcmp(command, "exec") == 0 ? EXEC_ENTRY : NULL;
}

int main(int argc, char **argv)
{
	static struct container c;
	const char *self = (const char *)getauxval(AT_EXECFN), *root = NULL, *log = NULL, *value;
	int at = 1;

	arguments = argv;
	argument_count = argc;
	const char *slash = self ? strrchr(self, '/') : NULL;
	/* Under the name of one of NVIDIA's programs gpurun is that one. */
	if (!self || strncmp(slash ? slash + 1 : self, "nvidia-", 7) == 0 || getenv("_GPURUN_COMPLETE"))
		launcher();
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			launcher();
	for (; at < argc && argv[at][0] == '-'; at++) {
		if ((value = option("--root", &at)))
			root = value;
		else if ((value = option("--log", &at)))
			log = value;
		else if ((value = option("--log-format", &at))) {
			if (strcmp(value, "json") != 0 && strcmp(value, "text") != 0)
				launcher();
		} else if (strcmp(argv[at], "--systemd-cgroup") != 0) /* which is said to create alone */
			launcher();
	}
	if (argc - at < 2)
		launcher();
	const char *entry = child_entry(argv[at]);
	if (entry)
		launcher_with(entry);
	const char *command = argv[at], *id = argv[at + 1], *more = argc - at == 3 ? argv[at + 2] : NULL;
	bool to_kill = strcmp(command, "kill") == 0, to_delete = strcmp(command, "delete") == 0;
	if (to_delete && more && (strcmp(id, "--force") == 0 || strcmp(id, "-f") == 0)) {
		id = more; /* which changes nothing for a container that has stopped */
		more = NULL;
	}
	bool to_state = strcmp(command, "state") == 0, to_start = strcmp(command, "start") == 0;
	if (argc - at > 3 || (more && !to_kill) || !(to_state || to_start || to_kill || to_delete) || !is_id(id))
		launcher();
	if (!root)
		root = default_root();
	if (!is_clean(root) || (log && *log && *log != '/')) /* a log may be journald's or syslog's */
		launcher();
	if (log && *log) { /* made even where nothing is said */
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		if (fd < 0)
			launcher();
		close(fd);
	}
	load(root, id, &c);
	return to_state ? do_state(&c) : to_start ? do_start(&c) : to_kill ? do_kill(&c, more) : do_delete(&c);
}
