/*
 * A part of front.c: exec's setter and the process that it makes, in the order of gpurun/engine/inside/exec_init.py and
 * enter_process.py, which say why.
 *
 * The setter is this program, executed once more from a sealed executable, with an empty environment and two descriptors beside
 * the streams.  It is in the container's cgroup and in nothing else of the container.  Whatever goes wrong ends it: the caller
 * sees that, and falls back to the launcher, which says why.
 */

#define SETTER_WORDS "gpurun", "exec" /* what ps(1) shows */
enum { CHANNEL = 3, INIT = 4 };	/* the socket to the caller; the pidfd of the container's init */
enum { WORDS = 4096, VARIABLES = 8192, GROUP_LIMIT = 65536, PASSWD_BYTES = 1 << 20 };

/* What is in no header of an older C library. */
enum { IN_ROOT = 0x10, NO_MAGICLINKS = 0x02, ON_PROC = 0x08 | 0x04 | 0x02 | 0x01 };
struct how {
	uint64_t flags, mode, resolve;
};

static void need(bool done)
{
	if (!done)
		_exit(1);
}

static int open_at(int directory, const char *path, int flags, uint64_t resolve)
{
	struct how how = { .flags = (uint64_t)(flags | O_CLOEXEC), .resolve = resolve };
	long fd = -1;

	for (int i = 0; i < 128; i++) { /* EAGAIN: a rename beside it, see openat2(2) */
		fd = syscall(SYS_openat2, directory, path, &how, sizeof how);
		if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
			break;
	}
	return (int)fd;
}

/* The path, below /proc, of a file of this process: what is opened there goes by no link. */
static const char *of_ourselves(int proc, const char *name)
{
	static char path[96];
	ssize_t length = readlinkat(proc, "self", path, 32);

	need(length > 0);
	snprintf(path + length, sizeof path - (size_t)length, "/%s", name);
	return path;
}

/* What an O_PATH descriptor refers to, opened. */
static int reopen(int proc, int fd, int flags)
{
	char name[32];

	snprintf(name, sizeof name, "fd/%d", fd);
	fd = openat(proc, of_ourselves(proc, name), flags | O_NOCTTY | O_CLOEXEC);
	need(fd >= 0);
	return fd;
}

/* Whether the error of opening something is that the image has none that can be used. */
static bool is_unusable(int error)
{
	return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG || error == EACCES ||
	       error == EPERM || error == ENXIO || error == ENODEV;
}

static bool is_null_device(int fd)
{
	struct stat found;

	need(fstat(fd, &found) == 0);
	return S_ISCHR(found.st_mode) && found.st_rdev == makedev(1, 3);
}

/* The container's /dev/null in the place of the host's. */
static void null_stdio(int root, int proc)
{
	for (int fd = 0; fd < 3; fd++) {
		if (!is_null_device(fd))
			continue;
		int found = open_at(root, "dev/null", O_PATH | O_NOFOLLOW, IN_ROOT | NO_MAGICLINKS);
		need(found >= 0 || is_unusable(errno));
		if (found < 0 || !is_null_device(found))
			return;
		int null = reopen(proc, found, O_RDWR);
		need(dup2(null, fd) == fd);
		close(null);
		close(found);
	}
}

static void write_label(int proc, const char *attribute, const char *label)
{
	int fd = open_at(proc, of_ourselves(proc, attribute), O_WRONLY, ON_PROC);

	need(fd >= 0 && write(fd, label, strlen(label)) == (ssize_t)strlen(label));
	close(fd);
}

/* HOME=, and the home directory of the user by the container's /etc/passwd, or the root directory. */
static char *home_variable(int root, int proc, uint64_t uid)
{
	static char passwd[PASSWD_BYTES + 1], variable[PATH_BYTES + 8];
	char *fields[7], wanted[24];
	struct stat found;
	size_t size = 0;
	ssize_t got;

	strcpy(variable, "HOME=/");
	snprintf(wanted, sizeof wanted, "%llu", (unsigned long long)uid);
	int at = open_at(root, "etc/passwd", O_PATH, IN_ROOT | NO_MAGICLINKS);
	need(at >= 0 || is_unusable(errno));
	if (at < 0)
		return variable;
	need(fstat(at, &found) == 0);
	if (!S_ISREG(found.st_mode)) {
		close(at);
		return variable;
	}
	int fd = reopen(proc, at, O_RDONLY);
	while (size < PASSWD_BYTES && (got = read(fd, passwd + size, PASSWD_BYTES - size)) > 0)
		size += (size_t)got;
	need(size == PASSWD_BYTES || got == 0);
	close(fd);
	close(at);
	for (char *line = passwd, *end; line < passwd + size; line = end + 1) {
		int count = 0;
		end = memchr(line, '\n', (size_t)(passwd + size - line));
		end = end ? end : passwd + size;
		*end = '\0';
		fields[count++] = line;
		for (char *letter = line; letter < end && count < 7; letter++)
			if (*letter == ':') {
				*letter = '\0';
				fields[count++] = letter + 1;
			}
		if (count < 6 || fields[2] + strlen(wanted) + 1 != fields[3] || strcmp(fields[2], wanted) != 0)
			continue;
		size_t length = (size_t)((count == 7 ? fields[6] - 1 : end) - fields[5]);
		if (length > 0 && length < PATH_BYTES && !memchr(fields[5], '\0', length))
			snprintf(variable, sizeof variable, "HOME=%s", fields[5]);
		break;
	}
	return variable;
}

static void own_stdio(uid_t uid, gid_t gid)
{
	struct stat found;

	for (int fd = 0; fd < 3; fd++) {
		need(fstat(fd, &found) == 0);
		if (found.st_uid == uid || S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode))
			continue;
		need(fchown(fd, uid, gid) == 0 || errno == EPERM || errno == EINVAL || errno == EROFS);
	}
}

/* The limits that the process is to have.  The one for processes, for which the setter counts as well, the process sets
 * itself (`last`); until then it is at least what it has been. */
static void set_limits(const struct plan *plan, bool last)
{
	for (size_t i = 0; i + 24 <= plan->sizes[TEXT_LIMITS]; i += 24) {
		struct rlimit now, wanted;
		uint64_t given[3];

		memcpy(given, plan->texts[TEXT_LIMITS] + i, sizeof given);
		wanted = (struct rlimit){ .rlim_cur = given[1], .rlim_max = given[2] };
		bool processes = given[0] == RLIMIT_NPROC;
		if (last && !processes)
			continue;
		if (processes && !last) {
			need(getrlimit(RLIMIT_NPROC, &now) == 0);
			wanted.rlim_cur = now.rlim_cur > wanted.rlim_cur ? now.rlim_cur : wanted.rlim_cur;
			wanted.rlim_max = now.rlim_max > wanted.rlim_max ? now.rlim_max : wanted.rlim_max;
		}
		need(syscall(SYS_prlimit64, 0, (int)given[0], &wanted, NULL) == 0);
	}
}

static void set_capability_sets(uint64_t effective, uint64_t permitted, uint64_t inheritable)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = {
		{ (uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable },
		{ (uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), (uint32_t)(inheritable >> 32) },
	};

	need(syscall(SYS_capset, &header, data) == 0);
}

/* Whether the program can be executed by us. */
static bool is_program(const char *path)
{
	struct stat found;

	return stat(path, &found) == 0 && !S_ISDIR(found.st_mode) && (found.st_mode & 0111) &&
	       faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) == 0;
}

/* The program for the command, by PATH of its own variables. */
static const char *find_program(const char *name, char **variables)
{
	static char candidate[PATH_BYTES];
	const char *path = NULL;

	if (strchr(name, '/')) {
		need(is_program(name));
		return name;
	}
	for (; *variables && !path; variables++)
		path = strncmp(*variables, "PATH=", 5) == 0 ? *variables + 5 : NULL;
	need(*name && path && *path);
	for (const char *end; path; path = *end ? end + 1 : NULL) {
		end = strchrnul(path, ':');
		int length = snprintf(candidate, sizeof candidate, "%.*s/%s", end > path ? (int)(end - path) : 1, end > path ? path : ".", name);
		if (length > 0 && length < PATH_BYTES && is_program(candidate))
			return candidate;
	}
	_exit(1);
}

/* User, groups and capabilities of the process, and with CAP_SYS_ADMIN where installing its filter takes that. */
static void become_user(const struct plan *plan, uint64_t more)
{
	const uint64_t *numbers = plan->numbers;
	uid_t uid = (uid_t)numbers[PLAN_UID];
	gid_t gid = (gid_t)numbers[PLAN_GID];
	size_t groups = plan->sizes[TEXT_GROUPS] / sizeof(gid_t);
	char cwd[PATH_BYTES];

	for (uint64_t number = 0; number <= numbers[PLAN_LAST_CAP]; number++)
		need((numbers[PLAN_BOUNDING] >> number & 1) || prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0);
	need(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
	own_stdio(uid, gid);
	bool entered = chdir(plan->texts[TEXT_CWD]) == 0; /* the directory may be closed to the user, or open only to it */
	need(syscall(SYS_setgroups, groups, plan->texts[TEXT_GROUPS]) == 0 || (groups == 0 && errno == EPERM));
	need(syscall(SYS_setresgid, gid, gid, gid) == 0 && syscall(SYS_setresuid, uid, uid, uid) == 0);
	need(entered || chdir(plan->texts[TEXT_CWD]) == 0);
	need(syscall(SYS_getcwd, cwd, sizeof cwd) > 0 && cwd[0] == '/'); /* CVE-2024-21626 */
	need(prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) == 0);
	set_capability_sets(numbers[PLAN_EFFECTIVE] | more, numbers[PLAN_PERMITTED] | more, numbers[PLAN_INHERITABLE]);
	need(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0);
	for (int number = 0; number < 64; number++)
		if (numbers[PLAN_AMBIENT] >> number & 1)
			need(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0) == 0 || errno == EPERM);
}

static long install_filter(const struct plan *plan)
{
	struct sock_fprog filter = {
		.len = (unsigned short)(plan->sizes[TEXT_SECCOMP] / sizeof(struct sock_filter)),
		.filter = (struct sock_filter *)(void *)plan->texts[TEXT_SECCOMP],
	};

	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, (unsigned)plan->numbers[PLAN_SECCOMP_FLAGS], &filter);
}

/* All signals as they are by default, and none blocked: callers hand them down ignored. */
static void default_signals(void)
{
	static const char nothing[32]; /* struct sigaction as the kernel has it, with SIG_DFL; sigset_t */

	for (int number = 1; number <= 64; number++)
		if (number != SIGKILL && number != SIGSTOP)
			syscall(SYS_rt_sigaction, number, nothing, NULL, 8);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, nothing, NULL, 8);
}

/* The process, born with what the program is to have. */
static _Noreturn void become_program(const struct plan *plan, const char *path, char **words, char **variables, bool filter)
{
	char go;

	set_limits(plan, true);
	setsid();
	need(write(CHANNEL, "C", 1) == 1 && receive_all(CHANNEL, &go, 1)); /* what a filter that is on lets through */
	default_signals();
	close(CHANNEL);
	bool filtered = !filter || install_filter(plan) == 0;
	if (filtered)
		execve(path, words, variables);
	const char *reason = strerror(errno);
	dprintf(2, "%s%s: %c%s\n", filtered ? "exec " : "install the seccomp filter", filtered ? path : "",
		tolower((unsigned char)reason[0]), reason + 1);
	_exit(255);
}

/* Whether this program is called by itself, see call_setter: no other program calls it by a descriptor, without any variable. */
static bool is_setter(const char *self)
{
	static const char *const words[] = { SETTER_WORDS };

	return self && strncmp(self, "/dev/fd/", 8) == 0 && !*environ && argument_count == 2 &&
	       strcmp(arguments[0], words[0]) == 0 && strcmp(arguments[1], words[1]) == 0;
}

static _Noreturn void become_setter(void)
{
	static char *words[WORDS], *variables[VARIABLES];
	static struct plan plan;
	struct statfs kind;
	struct stat found;
	struct job job;
	unsigned char all_cpus[1024];

	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	prctl(PR_SET_NAME, "gpurun:[exec]", 0, 0, 0);
	need(receive_all(CHANNEL, &job, sizeof job) && job.words_size <= sizeof words_text && job.plan_size <= sizeof plan_text);
	need(receive_all(CHANNEL, words_text, job.words_size) && receive_all(CHANNEL, plan_text, job.plan_size));
	need(read_plan(plan_text, job.plan_size, &plan) && split(words_text, job.words_size, words, WORDS) > 0);
	int count = split(plan.texts[TEXT_VARIABLES], plan.sizes[TEXT_VARIABLES], variables, VARIABLES);
	need(count >= 0);
	const uint64_t *numbers = plan.numbers;

	int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	need(proc >= 0 && fstatfs(proc, &kind) == 0 && kind.f_type == PROC_SUPER_MAGIC);
	need(setns(INIT, (int)numbers[PLAN_NAMESPACES]) == 0);
	close(INIT);
	memset(all_cpus, 0xff, sizeof all_cpus);
	syscall(SYS_sched_setaffinity, 0, sizeof all_cpus, all_cpus); /* refused by a sandbox around us: as that wants it */
	if (plan.sizes[TEXT_KEYRING])
		need(syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, plan.texts[TEXT_KEYRING], 0, 0, 0) >= 0 || errno == ENOSYS);
	need(chdir("/") == 0);
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	need(root >= 0 && fstat(root, &found) == 0);
	need(!job.has_root || (found.st_dev == job.root_device && found.st_ino == job.root_inode));
	null_stdio(root, proc);
	if (plan.sizes[TEXT_APPARMOR])
		write_label(proc, "attr/apparmor/exec", plan.texts[TEXT_APPARMOR]);
	if (plan.sizes[TEXT_SELINUX])
		write_label(proc, "attr/exec", plan.texts[TEXT_SELINUX]);
	umask((mode_t)numbers[PLAN_UMASK]);
	if (numbers[PLAN_HOME] != NOT_ONE) {
		need(numbers[PLAN_HOME] < (uint64_t)count);
		variables[numbers[PLAN_HOME]] = home_variable(root, proc, numbers[PLAN_UID]);
	}
	close(proc);
	close(root);
	bool filter = plan.sizes[TEXT_SECCOMP] > 0, safe = numbers[PLAN_NO_NEW_PRIVILEGES] != 0;
	need(!safe || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	set_limits(&plan, false);
	become_user(&plan, filter && !safe ? 1ULL << CAP_SYS_ADMIN : 0);
	const char *path = find_program(words[0], variables);
	for (const char *letter = path; *letter; letter++) /* it is to be said as it is, should execve(2) refuse it */
		need(*letter >= ' ' && *letter <= '~' && *letter != '"' && *letter != '\\');
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* a change of the user has set it to what fs.suid_dumpable says */
	bool early = filter && !safe && (numbers[PLAN_SECCOMP_FLAGS] & CAN_WAIT);
	if (early) {
		need(install_filter(&plan) == 0);
		set_capability_sets(numbers[PLAN_EFFECTIVE], numbers[PLAN_PERMITTED], numbers[PLAN_INHERITABLE]);
	}
	/* clone(2): profiles of engines know no clone3(2), of whose flags a filter sees nothing. */
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PARENT, 0, 0, 0, 0);
	if (pid == 0)
		become_program(&plan, path, words, variables, filter && !early);
	need(pid > 0);
	char message[1 + sizeof pid] = "P";
	memcpy(message + 1, &pid, sizeof pid);
	need(write(CHANNEL, message, sizeof message) == sizeof message);
	_exit(0);
}
