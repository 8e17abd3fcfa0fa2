/*
 * A part of front.c: `exec` by the plan that the launcher has kept of an earlier one (gpurun/engine/caller/kept_plan.py); the
 * caller's side.  front_setter.c is what happens in the container.
 *
 * It decides nothing.  Whatever is not as the plan says, and whatever goes wrong before the program runs, is the launcher's:
 * defer_to_python() ends what was made by then.
 */

static char process_text[PLAN_BYTES]; /* the process file */
static size_t words_size;

/* ---- what is asked for ---------------------------------------------------------------------------------------------- */

struct request {
	const char *id, *process, *pid_file;
	char **words;
	int count;
	bool detach;
};

static void add_byte(char byte)
{
	if (words_size == sizeof words_text)
		defer_to_python();
	words_text[words_size++] = byte;
}

/* The letter that stands behind a backslash, as JSON has it, or in its number. */
static unsigned escaped_letter(const char **at)
{
	static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
	const char *found = **at ? strchr(letters, **at) : NULL;
	unsigned code;

	if (found) {
		(*at)++;
		return (unsigned char)meant[found - letters];
	}
	if (**at != 'u' || strspn(*at + 1, "0123456789abcdefABCDEF") < 4 || sscanf(*at + 1, "%4x", &code) != 1)
		defer_to_python();
	*at += 5;
	return code;
}

/* Add the array of strings, at whose bracket we are, to the words; returns where it ends.  Letters beyond ASCII fall back. */
static const char *read_array(const char *at)
{
	static const char blanks[] = " \t\r\n";

	do {
		at += 1 + strspn(at + 1, blanks);
		if (*at++ != '"')
			defer_to_python();
		while (*at != '"') {
			unsigned letter = (unsigned char)*at++;
			if (letter == '\\')
				letter = escaped_letter(&at);
			else if (letter < ' ')
				defer_to_python();
			if (letter == 0 || letter > 127)
				defer_to_python();
			add_byte((char)letter);
		}
		add_byte('\0');
		at += 1 + strspn(at + 1, blanks);
	} while (*at == ',');
	if (*at != ']')
		defer_to_python();
	return at + 1;
}

/* The words of the process, which is that of the plan but for them. */
static void read_words(const struct request *asked, const struct plan *plan)
{
	uint64_t before = plan->sizes[TEXT_BEFORE], behind = plan->sizes[TEXT_BEHIND];

	if ((asked->process != NULL) != (plan->numbers[PLAN_FROM_FILE] == 1))
		defer_to_python();
	for (int i = 0; i < asked->count; i++)
		for (const char *letter = asked->words[i];; letter++) {
			add_byte(*letter);
			if (!*letter)
				break;
		}
	if (!asked->process)
		return;
	size_t size = read_regular(asked->process, process_text, sizeof process_text, false);
	if (size < before || memcmp(process_text, plan->texts[TEXT_BEFORE], before) != 0 || process_text[before] != '[')
		defer_to_python();
	const char *rest = read_array(process_text + before);
	if ((uint64_t)(process_text + size - rest) != behind || memcmp(rest, plan->texts[TEXT_BEHIND], behind) != 0)
		defer_to_python();
}

/* exec's words from `at` on; for what is not among them the launcher is there. */
static struct request read_request(int at)
{
	struct request asked = { 0 };
	const char *value;

	for (; at < argument_count && arguments[at][0] == '-'; at++) {
		if (strcmp(arguments[at], "--detach") == 0 || strcmp(arguments[at], "-d") == 0)
			asked.detach = true;
		else if ((value = option("--pid-file", &at)) && *value && !strstr(value, "..")) /* which may go by a link */
			asked.pid_file = value;
		else if (((value = option("--process", &at)) || (value = option("-p", &at))) && *value)
			asked.process = value;
		else
			defer_to_python();
	}
	asked.id = arguments[at < argument_count ? at : 0];
	asked.words = arguments + at + 1;
	asked.count = argument_count - at - 1;
	if (asked.process ? asked.count != 0 : asked.count < 1)
		defer_to_python();
	return asked;
}

/* ---- whether the plan is still one, and the container as it says ------------------------------------------------------- */

static void add_stamp(uint64_t **into, const char *path, bool must_be)
{
	struct stat found = { 0 };

	if (stat(path, &found) < 0 && (must_be || errno != ENOENT))
		defer_to_python();
	*(*into)++ = found.st_ino;
	*(*into)++ = (uint64_t)found.st_size;
	*(*into)++ = (uint64_t)found.st_mtim.tv_sec * 1000000000 + (uint64_t)found.st_mtim.tv_nsec;
	*(*into)++ = (uint64_t)found.st_ctim.tv_sec * 1000000000 + (uint64_t)found.st_ctim.tv_nsec;
}

/* The files that the plan was made from are what they were, by stamps() of kept_plan.py. */
static void require_same_files(const struct container *c, const struct plan *plan)
{
	static const char *const files[] = { PLAN_FILES };
	uint64_t stamps[4 * (1 + sizeof files / sizeof *files)], *at = stamps;
	char path[PATH_BYTES];

	add_stamp(&at, "/proc/self/exe", true);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		add_stamp(&at, text(path, "%s/%s", c->directory, files[i]), false);
	if (plan->sizes[TEXT_STAMPS] != sizeof stamps || memcmp(plan->texts[TEXT_STAMPS], stamps, sizeof stamps) != 0)
		defer_to_python();
}

/* The container's first process is in our user namespace, and in the container's cgroup. */
static void require_usual_place(const struct container *c)
{
	static char cgroups[64 << 10];
	char path[PATH_BYTES], *own;
	struct stat ours, its;

	if (stat("/proc/self/ns/user", &ours) < 0 || stat(text(path, "/proc/%lld/ns/user", c->pid), &its) < 0 ||
	    ours.st_dev != its.st_dev || ours.st_ino != its.st_ino)
		defer_to_python();
	if (read_file(text(path, "/proc/%lld/cgroup", c->pid), cgroups, sizeof cgroups) < 0)
		defer_to_python();
	own = strncmp(cgroups, "0::", 3) == 0 ? cgroups : strstr(cgroups, "\n0::");
	if (!own)
		defer_to_python();
	own = strchr(own, '/');
	if (!own)
		defer_to_python();
	own[strcspn(own, "\n")] = '\0';
	size_t length = strlen(own), whole = strlen(c->values[CGROUP]);
	if (length < 2 || strncmp(own, "/..", 3) == 0 || whole < length || strcmp(c->values[CGROUP] + whole - length, own) != 0)
		defer_to_python();
}

/* ---- the processes -------------------------------------------------------------------------------------------------- */

/* In the copy of this process that was born in the cgroup: execute this program's sealed file as the setter. */
static _Noreturn void call_setter(const struct plan *plan, int channel, int init)
{
	char *const words[] = { SETTER_WORDS, NULL }, *const nothing[] = { NULL };
	const char *score = plan->texts[TEXT_OOM_SCORE_ADJ];

	if (*score) {
		int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
		need(fd >= 0 && write(fd, score, strlen(score)) == (ssize_t)strlen(score));
	}
	int tree = seal("/proc/self/exe");
	channel = fcntl(channel, F_DUPFD_CLOEXEC, INIT + 1);
	init = fcntl(init, F_DUPFD_CLOEXEC, INIT + 1);
	tree = fcntl(tree, F_DUPFD_CLOEXEC, INIT + 1);
	need(tree >= 0 && dup2(channel, CHANNEL) == CHANNEL && dup2(init, INIT) == INIT);
	need(syscall(SYS_close_range, INIT + 1, ~0U, CLOSE_RANGE_CLOEXEC) == 0);
	syscall(SYS_execveat, tree, "", words, nothing, AT_EMPTY_PATH);
	_exit(1);
}

static void make_setter(const struct container *c, const struct plan *plan, int channel, int init)
{
	int cgroup = open(c->values[CGROUP], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct clone_args how = { .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (__u64)cgroup };

	pid_t pid = cgroup < 0 ? -1 : (pid_t)syscall(SYS_clone3, &how, sizeof how);
	if (pid == 0)
		call_setter(plan, channel, init);
	if (pid < 0)
		defer_to_python();
	made[SETTER] = pid;
	close(cgroup);
}

/* What the setter is to do, and the root directory that it is to come to: that of the first process, if create gave it that. */
static void send_job(const struct container *c, int channel, size_t plan_size)
{
	struct stat rootfs, root;
	struct job job = { .words_size = words_size, .plan_size = plan_size };
	char path[PATH_BYTES];

	if (stat(c->values[ROOTFS], &rootfs) == 0 && stat(text(path, "/proc/%lld/root/", c->pid), &root) == 0 &&
	    rootfs.st_dev == root.st_dev && rootfs.st_ino == root.st_ino) {
		job.has_root = 1;
		job.root_device = root.st_dev;
		job.root_inode = root.st_ino;
	}
	if (!send_all(channel, &job, sizeof job) || !send_all(channel, words_text, words_size) ||
	    !send_all(channel, plan_text, plan_size))
		defer_to_python();
}

/* Wait until the process is there and has only execve(2) to do.  A process in the container may trace it and speak in its place,
 * so the pid that we get must be that of a child of ours, which is none but this process and the setter. */
static void await_process(int channel)
{
	bool ready = false;
	siginfo_t unused;
	char what;
	pid_t pid;

	while (made[PROCESS] == 0 || !ready) {
		if (!receive_all(channel, &what, 1))
			defer_to_python();
		if (what == 'C') {
			ready = true;
			continue;
		}
		if (what != 'P' || made[PROCESS] || !receive_all(channel, &pid, sizeof pid) || pid <= 0 || pid == made[SETTER] ||
		    waitid(P_PID, (id_t)pid, &unused, WEXITED | WNOHANG | WNOWAIT) < 0)
			defer_to_python();
		made[PROCESS] = pid;
	}
	waitpid(made[SETTER], NULL, 0);
	made[SETTER] = 0;
}

/* The pid, written beside the file and renamed, as write_pid_file() in engine/state.py has it. */
static void write_pid_file(const char *path)
{
	char temporary[PATH_BYTES], pid[24];
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	unsigned long long chance;

	if (syscall(SYS_getrandom, &chance, sizeof chance, 0) != sizeof chance || strlen(path) > PATH_BYTES / 2)
		defer_to_python();
	text(temporary, "%.*s.%.200s.%016llx.new", (int)(name - path), path, name, chance);
	int size = snprintf(pid, sizeof pid, "%d", made[PROCESS]);
	int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		defer_to_python();
	if (write(fd, pid, (size_t)size) != size || rename(temporary, path) < 0) {
		unlink(temporary);
		defer_to_python();
	}
	close(fd);
}

/* Wait for the process, passing on each signal that we get, as wait_foreground() in engine/caller/lifecycle.py. */
static int wait_for_process(const sigset_t *blocked, int pidfd, int number)
{
	int ended = 0;

	while (waitpid(made[PROCESS], &ended, WNOHANG) == 0) {
		if (number > 0 && number != SIGCHLD && number != SIGWINCH && number != SIGURG)
			syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
		number = sigwaitinfo(blocked, NULL);
	}
	return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

static int do_exec(const char *root, int at)
{
	static struct container c;
	static struct plan plan;
	static const int faults[] = { SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV };
	struct request asked = read_request(at);
	char path[PATH_BYTES];
	const struct timespec none = { 0 };
	int ends[2];
	sigset_t blocked, before;
	struct sigaction children;
	struct stat found;
	siginfo_t child;

	if (!is_id(asked.id))
		defer_to_python();
	load(root, asked.id, &c);
	const char *now = status(&c);
	if (!now || strcmp(now, "running") != 0 || c.values[MANAGER][0] != '\0')
		defer_to_python();
	size_t size = read_regular(text(path, "%s/" PLAN_NAME, c.directory), plan_text, sizeof plan_text, true);
	if (!read_plan(plan_text, size, &plan))
		defer_to_python();
	require_same_files(&c, &plan);
	if (stat(text(path, "%s/gpu-change", c.directory), &found) == 0 || errno != ENOENT)
		defer_to_python(); /* it would get variables for GPUs that are not there */
	require_usual_place(&c);
	/* Of a container whose profile lets no signal of ours through the launcher knows the way to send it one. */
	if (!asked.detach && plan.sizes[TEXT_APPARMOR])
		defer_to_python();
	if (sigaction(SIGCHLD, NULL, &children) < 0 || children.sa_handler == SIG_IGN)
		defer_to_python();
	read_words(&asked, &plan);
	/* Who has become us may have left us children. */
	if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD)
		defer_to_python();
	all_ours = true;

	int init = (int)syscall(SYS_pidfd_open, (pid_t)c.pid, 0);
	if (init < 0 || !is_alive(&c)) /* looked at again: pids are used again */
		defer_to_python();
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		defer_to_python();
	make_setter(&c, &plan, ends[1], init);
	close(ends[1]);
	close(init);
	send_job(&c, ends[0], size);
	await_process(ends[0]);
	if (asked.pid_file)
		write_pid_file(asked.pid_file);
	sigfillset(&blocked); /* from now on they are the process's */
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&blocked, faults[i]);
	sigprocmask(SIG_BLOCK, &blocked, &before);
	int pidfd = (int)syscall(SYS_pidfd_open, made[PROCESS], 0), number = asked.detach ? 0 : sigtimedwait(&blocked, NULL, &none);
	if (pidfd < 0 || (number < 0 && errno != EAGAIN) || !send_all(ends[0], "G", 1)) { /* a filter may refuse these */
		sigprocmask(SIG_SETMASK, &before, NULL);
		if (asked.pid_file)
			unlink(asked.pid_file);
		defer_to_python();
	}
	return asked.detach ? 0 : wait_for_process(&blocked, pidfd, number);
}
