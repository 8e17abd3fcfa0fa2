/*
 * A part of front.c: becoming the launcher that stands behind the program, under the interpreter that its bytecode is for, or
 * under another one with what any_python.py has compiled for that; for create, run and exec in an interpreter that is sealed, so
 * that the container's process can be a copy of it.
 */

/* An interpreter, and the launcher whose bytecode is for it: the one behind us, or one that any_python.py has compiled. */
struct way {
	char python[PATH_BYTES], file[PATH_BYTES];
	off_t begin;  /* where the launcher begins in the file */
	bool certain; /* that the bytecode is for this interpreter, which then has our options to read */
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

/* A launcher that root has had compiled for python3.`minor`, which no other user can have changed. */
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

/* Say what went wrong, on stderr and in the caller's log, and end: for what no interpreter can tell.  Without a log stderr has the
 * record that would be in it, unless it is to be `bare`. */
static _Noreturn void die(const char *what, bool bare)
{
	const char *log = said("--log"), *format = said("--log-format");
	char now[32] = "";
	time_t seconds = time(NULL);
	struct tm utc;

	if (gmtime_r(&seconds, &utc))
		strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
	bool json = format && strcmp(format, "json") == 0;
	int fd = log && *log == '/' ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : bare ? -1 : 2;
	if (json)
		dprintf(fd, "{\"level\":\"error\",\"msg\":\"%s\",\"time\":\"%s\"}\n", what, now);
	else
		dprintf(fd, "time=\"%s\" level=error msg=\"%s\"\n", now, what);
	if (fd != 2)
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
	die(what, true);
}

/* The interpreter's file as a read-only mount of its own, of which nothing can be changed through /proc/PID/exe: what
 * engine/caller/start_init.py does where there is no front.  -1 where this process may make no mounts. */
static int seal(const char *python)
{
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY, .propagation = MS_PRIVATE };
	int tree = (int)syscall(SYS_open_tree, AT_FDCWD, python, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

	if (tree >= 0 && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &read_only, sizeof read_only) < 0) {
		close(tree);
		return -1;
	}
	return tree;
}

/* A file in memory with the variables of the environment, each ended by a zero byte; -1 when it cannot be made. */
static int save_environment(void)
{
	int fd = (int)syscall(SYS_memfd_create, "environment", 0U);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

	for (char **at = environ; file && at && *at; at++)
		fwrite(*at, strlen(*at) + 1, 1, file);
	if (!file || fflush(file) != 0) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

/* Become the launcher in an interpreter that is sealed, and that has none of the environment in its memory
 * (launcher/sealed.py).  The second and the third of `words` are for the option that tells it so.  Returns where that cannot be
 * done: then the launcher does without. */
static void become_sealed(char **words)
{
	static char option[64];
	char *const empty[] = { NULL };
	int tree = seal(words[0]), variables = tree < 0 ? -1 : save_environment();

	if (variables >= 0) {
		snprintf(option, sizeof option, SEALED_OPTION "=%d", variables);
		words[1] = "-X";
		words[2] = option;
		syscall(SYS_execveat, tree, "", words, empty, AT_EMPTY_PATH);
		close(variables);
	}
	if (tree >= 0)
		close(tree);
}

/* Become the launcher, with the arguments that we were given; `sealed`, where that can be. */
static _Noreturn void become_launcher(bool sealed)
{
	static char header[LINE_MAX_BYTES + 1], code[2 * LINE_MAX_BYTES];
	static struct way way;
	const char *self = (const char *)getauxval(AT_EXECFN);
	char **words = calloc((size_t)argument_count + 7, sizeof *words), *blank, *end;
	int fd = self ? open(self, O_RDONLY | O_CLOEXEC) : -1, count = 0;

	unsetenv("PYTHONEXECUTABLE"); /* which leads an interpreter to another library, in spite of -I */
	if (fd >= 0 && words && pread(fd, header, LINE_MAX_BYTES, BASE) > 0 && strncmp(header, "#!", 2) == 0 &&
	    (blank = strchr(header, ' '))) {
		*blank = '\0';
		if (!find_way(self, header + 2, &way))
			no_python(self);
		close(fd);
		fd = open(way.file, O_RDONLY | O_CLOEXEC);
		/* "#!python -ISBc<code>": see launcher.py */
		memset(header, 0, sizeof header);
		if (fd >= 0 && pread(fd, header, LINE_MAX_BYTES, way.begin) > 0 && (blank = strchr(header, ' ')) &&
		    (end = strchr(header, '\n')) && blank < end) {
			*end = *blank = '\0';
			close(fd);
			words[count++] = way.python;
			count += 2; /* room for the option of become_sealed */
			if (strcmp(way.file, self) != 0) { /* whose name is not the one that we were called by */
				static char called[PATH_BYTES + 32];

				snprintf(called, sizeof called, "gpurun-called=%s", self);
				words[count++] = "-X";
				words[count++] = called;
			}
			/* The code of the line, with a sentence for a file that cannot be read. */
			snprintf(code, sizeof code,
				 "-ISBcimport posix\ntry:\n %s\nexcept OSError as e:\n"
				 " posix.write(2,f'gpurun cannot read its own program: {e.strerror.lower()}\\n'.encode());posix._exit(1)",
				 blank + 1 + strlen("-ISBc"));
			words[count++] = strncmp(blank + 1, "-ISBc", strlen("-ISBc")) == 0 ? code : blank + 1;
			words[count++] = way.file;
			for (int i = 1; i < argument_count; i++)
				words[count++] = arguments[i];
			if (sealed && way.certain)
				become_sealed(words);
			words[2] = way.python;
			execv(words[2], words + 2);
		}
	}
	dprintf(2, "gpurun: cannot become the launcher in %s: %s\n", self ? self : "this program", strerror(errno));
	_exit(1);
}

static bool to_be_sealed; /* for a command whose process can be a copy of the launcher's */

/* What exec has made so far: ours to end and to reap. */
enum { SETTER, PROCESS };
static pid_t made[2];
/* No process was a child of ours when exec began, so each that is one now is exec's. */
static bool all_ours;
enum { ROUNDS = 8 }; /* in which all children are ended; one that is not under our control can make more of them */

/* End and reap what exec has made, also the process whose pid its setter did not get to tell us. */
static void end_processes(void)
{
	char list[4096], *end;
	siginfo_t child;

	for (int i = 0; i < 2; i++)
		if (made[i] > 0) {
			kill(made[i], SIGKILL);
			waitpid(made[i], NULL, 0);
		}
	for (int round = 0; all_ours && round < ROUNDS && (waitpid(-1, NULL, WNOHANG | __WALL) >= 0 || errno != ECHILD); round++) {
		int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
		ssize_t size = fd < 0 ? -1 : read(fd, list, sizeof list - 1);

		if (fd >= 0)
			close(fd);
		list[size > 0 ? size : 0] = '\0';
		for (char *at = list; (end = strchr(at, ' ')); at = end + 1) { /* a space is behind each; a number cut off has none */
			pid_t pid = (pid_t)strtol(at, NULL, 10);
			if (pid > 1 && waitid(P_PID, (id_t)pid, &child, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0) {
				kill(pid, SIGKILL);
				waitpid(pid, NULL, __WALL);
			}
		}
	}
}

static _Noreturn void defer_to_python(void)
{
	end_processes();
	become_launcher(to_be_sealed);
}
