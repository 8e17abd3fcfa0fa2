/*
 * A part of front.c: becoming the launcher that stands behind the program, under the interpreter that its bytecode is for, or
 * under another one with what any_python.py has compiled for that; and the starter that is begun before, for create and exec.
 */

/* An interpreter, and the launcher whose bytecode is for it: the one behind us, or one that any_python.py has compiled. */
struct way {
	char python[PATH_BYTES], file[PATH_BYTES];
	off_t begin;  /* where the launcher begins in the file */
	bool certain; /* that the bytecode is for this interpreter, so that a child can be started */
};

enum { OLDEST_PYTHON = 11, NEWEST_PYTHON = 40 };

/* The N of an interpreter whose own name is python3.N; 0 for another name, or when it is not there. */
static int minor_of(const char *python)
{
	char resolved[PATH_BYTES];
	int minor = 0, length = 0;

	if (access(python, X_OK) != 0 || !realpath(python, resolved))
		return 0;
	const char *name = strrchr(resolved, '/');
	return name && sscanf(name, "/python3.%2d%n", &minor, &length) == 1 && name[length] == '\0' ? minor : 0;
}

/* A launcher that root has had compiled for python3.`minor`, which nobody else can have changed. */
static bool is_kept(char *file, int minor)
{
	struct stat found;

	if (stat(CACHE, &found) != 0 || found.st_uid != 0 || (found.st_mode & 022))
		return false;
	snprintf(file, PATH_BYTES, CACHE "/" BUILD_NAME "-cpython-3%d", minor);
	return lstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == 0 && !(found.st_mode & 022);
}

/* Which interpreter to take: the one of the interpreter line if the bytecode is for it, another of its version, one for which
 * there is a compiled launcher, any other (the launcher then sees to it).  False when there is none. */
static bool find_way(const char *self, const char *line_python, struct way *way)
{
	char beside[PATH_BYTES];
	const char *const directories[] = { beside, "/usr/bin", "/usr/local/bin" };
	int minor;

	snprintf(beside, sizeof beside, "%s", self);
	char *slash = strrchr(beside, '/');
	if (slash)
		*slash = '\0';
	snprintf(way->python, PATH_BYTES, "%s", line_python);
	snprintf(way->file, PATH_BYTES, "%s", self);
	way->begin = BASE;
	way->certain = true;
	if (minor_of(way->python) == PYTHON_MINOR)
		return true;
	for (size_t i = 0; i < 3; i++)
		if ((size_t)snprintf(way->python, PATH_BYTES, "%s/python3.%d", directories[i], PYTHON_MINOR) < PATH_BYTES &&
		    minor_of(way->python) == PYTHON_MINOR)
			return true;
	for (int kept = 1; kept >= 0; kept--)
		for (minor = NEWEST_PYTHON; minor >= OLDEST_PYTHON; minor--)
			for (size_t i = 0; i < 3; i++) {
				if ((size_t)snprintf(way->python, PATH_BYTES, "%s/python3.%d", directories[i], minor) >= PATH_BYTES ||
				    minor_of(way->python) != minor || (kept && !is_kept(way->file, minor)))
					continue;
				if (!kept)
					snprintf(way->file, PATH_BYTES, "%s", self);
				way->begin = kept ? 0 : BASE;
				way->certain = kept;
				return true;
			}
	snprintf(way->file, PATH_BYTES, "%s", self);
	way->certain = false;
	for (size_t i = 0; i < 3; i++)
		if ((size_t)snprintf(way->python, PATH_BYTES, "%s/python3", directories[i]) < PATH_BYTES &&
		    access(way->python, X_OK) == 0)
			return true;
	return false;
}

/* The value of an option before the command, as `--name value` or `--name=value`; NULL without. */
static const char *said(const char *name)
{
	size_t length = strlen(name);

	for (int i = 1; i < argument_count && arguments[i][0] == '-'; i++) {
		if (strncmp(arguments[i], name, length) == 0 && arguments[i][length] == '=')
			return arguments[i] + length + 1;
		if (strcmp(arguments[i], name) == 0)
			return i + 1 < argument_count ? arguments[i + 1] : NULL;
		if (strcmp(arguments[i], "--root") == 0 || strcmp(arguments[i], "--log") == 0 || strcmp(arguments[i], "--log-format") == 0)
			i++;
	}
	return NULL;
}

/* Say what went wrong, on stderr and in the caller's log, and end: for what no interpreter can tell. */
static _Noreturn void die(const char *what)
{
	const char *log = said("--log"), *format = said("--log-format");
	char now[32] = "";
	time_t seconds = time(NULL);
	struct tm utc;

	if (gmtime_r(&seconds, &utc))
		strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
	bool json = format && strcmp(format, "json") == 0;
	int fd = log && *log == '/' ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
	if (fd >= 0 && json)
		dprintf(fd, "{\"level\":\"error\",\"msg\":\"%s\",\"time\":\"%s\"}\n", what, now);
	else if (fd >= 0)
		dprintf(fd, "time=\"%s\" level=error msg=\"%s\"\n", now, what);
	dprintf(2, "%s\n", what);
	_exit(1);
}

static _Noreturn void no_python(const char *self)
{
	const char *slash = strrchr(self, '/');
	char what[PATH_BYTES];

	snprintf(what, sizeof what,
		 "gpurun needs Python 3.%d or newer, and none is in %.*s, /usr/bin or /usr/local/bin: install one (apt-get install python3)",
		 OLDEST_PYTHON, slash ? (int)(slash - self) : 1, slash ? self : ".");
	die(what);
}

/* Take away the variables that change an interpreter: PYTHONEXECUTABLE does in spite of -I. */
static void drop_python_variables(void)
{
	char **kept = environ;

	for (char **at = environ; at && *at; at++)
		if (strncmp(*at, "PYTHON", 6) != 0)
			*kept++ = *at;
	if (environ)
		*kept = NULL;
}

/* Start the interpreter that is to make the container's process, of which start_child in gpurun/engine/caller/start_init.py tells: sealed,
 * with its end of a socket.  Returns what the launcher is told of it, NULL when there is none: then the launcher starts one. */
static const char *start_child(char *python, char *code, const char *launcher_file, const char *entry)
{
	static char option[64], file[16], socket[16];
	struct mount_attr sealed = { .attr_set = MOUNT_ATTR_RDONLY, .propagation = MS_PRIVATE };
	char *const words[] = { python, "-ISBc", code, file, (char *)(uintptr_t)entry, socket, NULL }, *const empty[] = { NULL };
	int tree = (int)syscall(SYS_open_tree, AT_FDCWD, python, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	int fd = open(launcher_file, O_RDONLY | O_CLOEXEC), ends[2];
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
static _Noreturn void defer_with_child(const char *entry)
{
	static char header[LINE_MAX_BYTES + 1];
	static struct way way;
	const char *self = (const char *)getauxval(AT_EXECFN);
	char **words = calloc((size_t)argument_count + 7, sizeof *words), *blank, *end;
	int fd = self ? open(self, O_RDONLY | O_CLOEXEC) : -1, count = 0;

	drop_python_variables();
	if (fd >= 0 && words && pread(fd, header, LINE_MAX_BYTES, BASE) > 0 && strncmp(header, "#!", 2) == 0 &&
	    (blank = strchr(header, ' '))) {
		*blank = '\0';
		if (!find_way(self, header + 2, &way))
			no_python(self);
		close(fd);
		fd = open(way.file, O_RDONLY | O_CLOEXEC);
		/* "#!python -ISBc<code>", a comment, "# child: <code>": see launcher.py */
		memset(header, 0, sizeof header);
		if (fd >= 0 && pread(fd, header, LINE_MAX_BYTES, way.begin) > 0 && (blank = strchr(header, ' ')) &&
		    (end = strchr(header, '\n')) && blank < end) {
			char *code = strstr(header, "\n# child: "), *code_end = code ? strchr(code + 1, '\n') : NULL;

			*end = *blank = '\0';
			if (code_end)
				*code_end = '\0';
			close(fd);
			const char *child = entry && way.certain && code_end ?
						    start_child(way.python, code + strlen("\n# child: "), way.file, entry) : NULL;
			words[count++] = way.python;
			if (child) {
				words[count++] = "-X";
				words[count++] = (char *)(uintptr_t)child;
			}
			if (strcmp(way.file, self) != 0) { /* whose name is not the one that we were called by */
				static char called[PATH_BYTES + 32];

				snprintf(called, sizeof called, "gpurun-called=%s", self);
				words[count++] = "-X";
				words[count++] = called;
			}
			words[count++] = blank + 1;
			words[count++] = way.file;
			for (int i = 1; i < argument_count; i++)
				words[count++] = arguments[i];
			execv(words[0], words);
		}
	}
	dprintf(2, "gpurun: cannot become the launcher in %s: %s\n", self ? self : "this program", strerror(errno));
	_exit(1);
}

static _Noreturn void defer_to_python(void)
{
	defer_with_child(NULL);
}
