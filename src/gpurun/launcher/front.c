/*
 * The compiled front of gpurun: `state`, `start`, `kill`, `pause`, `resume`, `delete` and `exec` of an ordinary container.
 *
 * It is never needed.  It does what gpurun/engine/caller/ (lifecycle, delete) and gpurun/commands/ (inspect, control) do, from
 * the same files, for the plainest form of these commands.  For every other command, for every container with something more to do, and
 * for whatever it does not understand, it falls back: it becomes the launcher that is appended to it (execve of the interpreter
 * line at byte BASE), which is `defer_to_python`; a function that is called `require_...` returns only where that is not needed.
 * So every rare path and every error text is in Python only.  For `create`, `run` and every other
 * `exec` it seals the interpreter before it becomes the launcher, so that the container's process can be a copy of it.
 *
 * The rule that makes this safe: nothing is changed until everything is understood, and what is changed first leaves a
 * container that the launcher can go on with; the processes of an exec are ended before it does.  What was made in a rootfs is
 * for the launcher to undo: nothing here changes anything of an image, or reads more of it than exec's /etc/passwd.
 *
 * Nothing is allocated but the launcher's words and what the C library needs to read a directory; all buffers have a fixed
 * size, and what does not fit falls back.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif

#define LINE_MAX_BYTES 512 /* the launcher's first line and comment take no more */

enum { FREEZE_MILLISECONDS = 1000 };
enum { REMOVE_ATTEMPTS = 100 }; /* how often a directory is emptied in which others still make files, as in engine/state.py */
enum { PATH_BYTES = 4096, STATE_BYTES = 256 << 10, CONFIG_BYTES = 4 << 20, OUTPUT_BYTES = 320 << 10 };

static char **arguments;
static int argument_count;

#include "front_launcher.c"

/* A path made of parts; one that is too long falls back. */
__attribute__((format(printf, 2, 3))) static const char *text(char *into, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	int length = vsnprintf(into, PATH_BYTES, format, list);
	va_end(list);
	if (length < 0 || length >= PATH_BYTES)
		defer_to_python();
	return into;
}

/* The size of the content of the file, which is in `into`, ended by a zero byte; -1 with errno.  Too long: falls back. */
static ssize_t read_file(const char *path, char *into, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	size_t have = 0;
	ssize_t got = 1;

	if (fd < 0)
		return -1;
	while (have < bytes && (got = read(fd, into + have, bytes - have)) > 0)
		have += (size_t)got;
	int failed = got < 0 ? errno : 0;
	close(fd);
	if (have == bytes)
		defer_to_python();
	errno = failed;
	into[have] = '\0';
	return failed ? -1 : (ssize_t)have;
}

/* Whether what stat(2) has `found` of the regular file or the directory `path` is our effective user's.  In a user namespace another's
 * number may look like ours: open(2) allows O_NOATIME to the owner only.  src/gpurun/linux/owners.py says more. */
static bool is_own(const struct stat *found, const char *path)
{
	if (found->st_uid != geteuid())
		return false;
	if (found->st_uid == 0)
		return true;
	int fd = open(path, O_RDONLY | O_NOATIME | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

/* The same of a regular file, or it falls back; nothing else is opened: a FIFO would hold us, or can be read once, and that is the
 * launcher's; to open a device does something already.  Unless `ours`, it may be anybody's. */
static size_t read_regular(const char *path, char *into, size_t bytes, bool ours)
{
	char name[32];
	struct stat found;
	int at = open(path, O_PATH | O_CLOEXEC);

	snprintf(name, sizeof name, "/proc/self/fd/%d", at);
	if (at < 0 || fstat(at, &found) < 0 || !S_ISREG(found.st_mode) || (ours && ((found.st_mode & 022) || !is_own(&found, name))))
		defer_to_python();
	ssize_t size = read_file(name, into, bytes);
	if (size < 0)
		defer_to_python();
	close(at);
	return (size_t)size;
}

/* A decimal number without sign or blanks, of at most 18 digits; anything else falls back. */
static long long number(const char *digits)
{
	long long value = 0;
	size_t length = strspn(digits, "0123456789");

	if (length == 0 || length > 18 || digits[length] != '\0')
		defer_to_python();
	for (size_t i = 0; i < length; i++)
		value = value * 10 + (digits[i] - '0');
	return value;
}

#include "front_state.c"

/* ---- the commands --------------------------------------------------------------------------------------------------- */

/* That the kernel has killed in the container for want of memory is for the launcher to say. */
static void require_no_oom_kill(const struct container *c)
{
	static char statistics[64 << 10];
	char events[512], *kills;
	struct stat found;

	if (read_cgroup(c, "memory.events", events, sizeof events)) {
		if (!strstr(events, "\noom_kill 0\n"))
			defer_to_python();
		return;
	}
	if (c->values[UNIT][0] == '\0' || stat(c->values[CGROUP], &found) == 0)
		return;
	/* A scope takes with it what was known, but where nothing on this host was killed so since, nothing in it was. */
	if (read_file("/proc/vmstat", statistics, sizeof statistics) < 0 || !(kills = strstr(statistics, "\noom_kill ")))
		defer_to_python();
	kills += strlen("\noom_kill ");
	kills[strcspn(kills, "\n")] = '\0';
	if (number(kills) != number(c->values[OOM_KILLS]))
		defer_to_python();
}

/* Whether the text is the same as JSON, between its quotes or (`json`) as it is. */
static void require_printable(const char *value, bool json)
{
	for (const char *at = value; *at; at++)
		if (*at < ' ' || *at > '~' || (!json && (*at == '"' || *at == '\\')))
			defer_to_python();
}

/* Some of it has been written: the launcher would write that again. */
static _Noreturn void lost_output(int error)
{
	char what[128];

	snprintf(what, sizeof what, "cannot write to stdout: %s", strerror(error));
	char *reason = strchr(what, ':') + 2;
	*reason = (char)tolower((unsigned char)*reason);
	die(what, false);
}

static int do_state(const struct container *c)
{
	static char out[OUTPUT_BYTES];
	static const enum field shown[] = { ID, BUNDLE, ROOTFS, CREATED, OWNER, ANNOTATIONS };
	const char *now = status(c);

	if (!now)
		require_no_oom_kill(c);
	if (c->values[OWNER][0] == '\0')
		defer_to_python();
	for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
		require_printable(c->values[shown[i]], shown[i] == ANNOTATIONS);
	bool annotated = strcmp(c->values[ANNOTATIONS], "{}") != 0;
	int size = snprintf(out, sizeof out,
			    "{\n  \"ociVersion\": \"" SPEC_VERSION "\",\n  \"id\": \"%s\",\n  \"pid\": %lld,\n  \"status\": \"%s\",\n"
			    "  \"bundle\": \"%s\",\n  \"rootfs\": \"%s\",\n  \"created\": \"%s\",\n"
			    "  \"owner\": \"%s\"%s%s\n}\n",
			    c->values[ID], now ? c->pid : 0, now ? now : "stopped", c->values[BUNDLE], c->values[ROOTFS], c->values[CREATED],
			    c->values[OWNER],
			    annotated ? ",\n  \"annotations\": " : "", annotated ? c->values[ANNOTATIONS] : "");
	if (size < 0 || (size_t)size >= sizeof out)
		defer_to_python();
	signal(SIGPIPE, SIG_IGN); /* a write that fails is an error to report */
	signal(SIGXFSZ, SIG_IGN);
	for (int at = 0; at < size;) {
		ssize_t wrote = write(1, out + at, (size_t)(size - at));
		if (wrote < 0 && at == 0)
			defer_to_python();
		if (wrote < 0)
			lost_output(errno);
		at += (int)wrote;
	}
	return 0;
}

static int do_start(const struct container *c)
{
	char path[PATH_BYTES];
	const char *now = status(c);

	if (!now || strcmp(now, "created") != 0 || getenv("NOTIFY_SOCKET"))
		defer_to_python();
	/* Hooks of other kinds create has called (Docker's for the network), or the init will.  If a poststart hook fails, the
	 * poststop hooks run. */
	require_no_hooks(c, (const char *const[]){ "\"poststart\"", "\"poststop\"", NULL });
	signal(SIGPIPE, SIG_IGN);
	int fifo = open(text(path, "%s/exec.fifo", c->directory), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	/* Of two starts at once, the one that removes the FIFO is the one. */
	if (fifo < 0 || unlink(path) < 0 || write(fifo, "0", 1) != 1)
		defer_to_python();
	return 0;
}

/* The number of a signal as shims give it; other names fall back. */
static int signal_number(const char *word)
{
	static const struct {
		const char *name;
		int number;
	} known[] = { { "HUP", 1 }, { "INT", 2 }, { "QUIT", 3 }, { "KILL", 9 }, { "USR1", 10 }, { "USR2", 12 }, { "TERM", 15 } };

	if (*word >= '0' && *word <= '9') {
		long long given = number(word);
		if (given > 64)
			defer_to_python();
		return (int)given;
	}
	if (strncmp(word, "SIG", 3) == 0)
		word += 3;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(word, known[i].name) == 0)
			return known[i].number;
	defer_to_python();
}

static int do_kill(const struct container *c, const char *word)
{
	int wanted = word ? signal_number(word) : SIGTERM;

	if (c->pid == 0 || (wanted == SIGKILL && strcmp(c->values[PRIVATE_PID], "1") != 0))
		defer_to_python();
	long pidfd = syscall(SYS_pidfd_open, (pid_t)c->pid, 0);
	/* Looked at again after opening: pids are used again. */
	if (pidfd < 0 || !is_alive(c) || syscall(SYS_pidfd_send_signal, (int)pidfd, wanted, NULL, 0) < 0)
		defer_to_python();
	return 0;
}

static bool set_frozen(const struct container *c, const char *value)
{
	char path[PATH_BYTES];
	int fd = open(text(path, "%s/cgroup.freeze", c->values[CGROUP]), O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, value, 1) == 1;

	if (fd >= 0)
		close(fd);
	return done;
}

static int do_pause(const struct container *c)
{
	char path[PATH_BYTES], events[4096];
	const char *now = status(c);
	ssize_t size;

	if (!now || strcmp(now, "paused") == 0)
		defer_to_python();
	int fd = open(text(path, "%s/cgroup.events", c->values[CGROUP]), O_RDONLY | O_CLOEXEC);
	if (fd < 0 || !set_frozen(c, "1"))
		defer_to_python();
	/* The kernel says when the file changes.  What takes longer than a moment is thawed again, for the launcher to begin anew. */
	struct pollfd change = { .fd = fd, .events = POLLPRI };
	while ((size = pread(fd, events, sizeof events - 1, 0)) > 0) {
		events[size] = '\0';
		if (strstr(events, "frozen 1"))
			return 0;
		if (poll(&change, 1, FREEZE_MILLISECONDS) <= 0)
			break;
	}
	set_frozen(c, "0");
	defer_to_python();
}

static int do_resume(const struct container *c)
{
	const char *now = status(c);

	if (!now || strcmp(now, "paused") != 0 || !set_frozen(c, "0"))
		defer_to_python();
	return 0;
}

#include "front_delete.c"
#include "front_plan.c"
#include "front_setter.c"

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

/* Whether user ids are mapped here: the first namespace has the one map of each of them to itself. */
static bool in_user_namespace(void)
{
	char map[4096], rest;
	unsigned inside, outside, size;

	if (read_file("/proc/self/uid_map", map, sizeof map) < 0)
		defer_to_python();
	return sscanf(map, "%u %u %u %c", &inside, &outside, &size, &rest) != 3 || inside || outside || size != UINT32_MAX;
}

/* As default_root() in cli/parse.py.  Rootless Podman, root of a user namespace, gives $XDG_RUNTIME_DIR and no other variable. */
static const char *default_root(void)
{
	static char root[PATH_BYTES];
	const char *user = getenv("USER"), *runtime = getenv("XDG_RUNTIME_DIR");

	if ((!runtime || !*runtime) && geteuid() != 0)
		return text(root, "/run/user/%u/gpurun", geteuid());
	if (!runtime || !*runtime || (geteuid() == 0 && ((user && strcmp(user, "root") == 0) || !in_user_namespace())))
		return "/run/gpurun";
	return text(root, "%s/gpurun", runtime);
}

#include "front_exec.c"

int main(int argc, char **argv)
{
	static struct container c;
	const char *self = (const char *)getauxval(AT_EXECFN), *root = NULL, *log = NULL, *value;
	int at = 1;

	arguments = argv;
	argument_count = argc;
	const char *slash = self ? strrchr(self, '/') : NULL;
	if (is_setter(self))
		become_setter();
	/* Under the name of one of a maker's programs gpurun is that one. */
	const char *name = slash ? slash + 1 : self;
	if (!name || strncmp(name, "nvidia-", 7) == 0 || strncmp(name, "amd-", 4) == 0 || getenv("_GPURUN_COMPLETE"))
		defer_to_python();
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			defer_to_python();
	for (; at < argc && argv[at][0] == '-'; at++) {
		if ((value = option("--root", &at)))
			root = value;
		else if ((value = option("--log", &at)))
			log = value;
		else if ((value = option("--log-format", &at))) {
			if (strcmp(value, "json") != 0 && strcmp(value, "text") != 0)
				defer_to_python();
		} else if (strcmp(argv[at], "--systemd-cgroup") != 0) /* which only create reads */
			defer_to_python();
	}
	if (argc - at < 2)
		defer_to_python();
	bool to_exec = strcmp(argv[at], "exec") == 0;
	to_be_sealed = to_exec || strcmp(argv[at], "create") == 0 || strcmp(argv[at], "run") == 0;
	if (to_be_sealed && !to_exec)
		defer_to_python();
	const char *command = argv[at], *id = argv[at + 1], *more = argc - at == 3 ? argv[at + 2] : NULL;
	bool to_kill = strcmp(command, "kill") == 0, to_delete = strcmp(command, "delete") == 0;
	bool force = to_delete && more && (strcmp(id, "--force") == 0 || strcmp(id, "-f") == 0);
	if (force) {
		id = more;
		more = NULL;
	}
	bool to_state = strcmp(command, "state") == 0, to_start = strcmp(command, "start") == 0;
	bool to_pause = strcmp(command, "pause") == 0, to_resume = strcmp(command, "resume") == 0;
	if (!to_exec && (argc - at > 3 || (more && !to_kill) || !is_id(id) ||
			 !(to_state || to_start || to_kill || to_delete || to_pause || to_resume)))
		defer_to_python();
	if (!root)
		root = default_root();
	if (!is_clean(root) || (log && *log && *log != '/')) /* a log may be journald's or syslog's */
		defer_to_python();
	if (log && *log) { /* made even where nothing is said */
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		if (fd < 0)
			defer_to_python();
		close(fd);
	}
	if (to_exec)
		return do_exec(root, at + 1);
	load(root, id, &c);
	if (to_pause)
		return do_pause(&c);
	if (to_resume)
		return do_resume(&c);
	return to_state ? do_state(&c) : to_start ? do_start(&c) : to_kill ? do_kill(&c, more) : do_delete(&c, force);
}
