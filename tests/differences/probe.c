/* Prints all that a process can see of itself, a line for each thing: "key = value".
 *
 *     probe [hold]
 *
 * With "hold" it stays until it is killed.  What differs each time for everybody (times, addresses, pids of the host) is not
 * printed, or printed as what it is compared with.  Static, so that it needs nothing of a rootfs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <termios.h>
#include <unistd.h>

extern char **environ;

static const char *errno_name(int number)
{
	static char text[16];

	if (number == 0)
		return "ok";
	const char *name = strerrorname_np(number);

	if (name)
		return name;
	snprintf(text, sizeof text, "%d", number);
	return text;
}

static void print_text(const char *key, const char *value)
{
	printf("%s = ", key);
	for (; *value; value++) {
		if (*value == '\n')
			fputs("\\n", stdout);
		else
			putchar(*value);
	}
	putchar('\n');
}

static void print_file(const char *path)
{
	char data[4096], key[300];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t size = fd < 0 ? -1 : read(fd, data, sizeof data - 1);

	snprintf(key, sizeof key, "file %s", path);
	if (size < 0) {
		printf("%s = (%s %s)\n", key, fd < 0 ? "open" : "read", errno_name(errno));
	} else {
		data[size] = '\0';
		print_text(key, data);
	}
	if (fd >= 0)
		close(fd);
}

/* How many bytes can be read of what may be masked: its content is the host's. */
static void print_masked(const char *path)
{
	char data[64];
	struct stat found;

	if (lstat(path, &found)) {
		printf("masked %s = (%s)\n", path, errno_name(errno));
		return;
	}
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (S_ISDIR(found.st_mode)) {
		DIR *directory = fd < 0 ? NULL : fdopendir(fd);
		int number = 0;

		while (directory && readdir(directory))
			number++;
		printf("masked %s = directory, %s\n", path, !directory ? "closed" : number > 2 ? "full" : "empty");
		if (directory)
			closedir(directory);
		return;
	}
	ssize_t size = fd < 0 ? -1 : read(fd, data, sizeof data);

	printf("masked %s = type %o, %s\n", path, found.st_mode >> 12,
	       size < 0 ? errno_name(errno) : size ? "has content" : "is empty");
	if (fd >= 0)
		close(fd);
}

static void print_writable(const char *path)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);

	printf("open for writing %s = %s\n", path, errno_name(fd < 0 ? errno : 0));
	if (fd >= 0)
		close(fd);
}

static void print_status(void)
{
	static const char *const skipped[] = { "Name", "State", "Tgid", "Ngid", "Pid", "PPid", "FDSize", "NStgid", "NSpid",
		"NSpgid", "NSsid", "VmPeak", "VmSize", "VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem", "VmData", "VmStk",
		"VmExe", "VmLib", "VmPTE", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches", "Mems_allowed",
		"Cpus_allowed", "SigQ", NULL };
	char line[8192];
	FILE *file = fopen("/proc/self/status", "re");

	while (file && fgets(line, sizeof line, file)) {
		char *colon = strchr(line, ':'), *end = strchr(line, '\n');

		if (!colon || !end)
			continue;
		*colon = *end = '\0';
		int skip = 0;

		for (int i = 0; skipped[i]; i++)
			skip |= !strcmp(line, skipped[i]);
		if (!skip)
			printf("status %s = %s\n", line, colon + 1 + strspn(colon + 1, " \t"));
	}
	if (file)
		fclose(file);
	else
		printf("status = (%s)\n", errno_name(errno));
}

static void print_mounts(void)
{
	char line[8192];
	FILE *file = fopen("/proc/self/mountinfo", "re");
	int number = 0;

	while (file && fgets(line, sizeof line, file)) {
		char *end = strchr(line, '\n');

		if (end)
			*end = '\0';
		printf("mountinfo %d = %s\n", number++, line);
	}
	if (file)
		fclose(file);
	else
		printf("mountinfo = (%s)\n", errno_name(errno));
}

static void print_descriptors(void)
{
	for (int fd = 0; fd < 1024; fd++) {
		char path[64], target[512];
		struct stat found;
		int flags = fcntl(fd, F_GETFL);

		if (flags < 0)
			continue;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t size = readlink(path, target, sizeof target - 1);

		target[size < 0 ? 0 : size] = '\0';
		if (fstat(fd, &found))
			found.st_mode = 0;
		printf("descriptor %d = %s, flags %o, descriptor flags %d, mode %o, rdev %u:%u, owner %u:%u\n", fd, target, flags,
		       fcntl(fd, F_GETFD), found.st_mode, major(found.st_rdev), minor(found.st_rdev), found.st_uid, found.st_gid);
	}
}

static void print_terminal(void)
{
	struct termios settings;
	struct winsize size;
	int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);

	printf("terminal /dev/tty = %s\n", errno_name(tty < 0 ? errno : 0));
	if (tty >= 0)
		close(tty);
	if (tcgetattr(0, &settings)) {
		printf("terminal = (%s)\n", errno_name(errno));
		return;
	}
	printf("terminal flags = %o %o %o %o\n", settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag);
	if (!ioctl(0, TIOCGWINSZ, &size))
		printf("terminal size = %u %u\n", size.ws_row, size.ws_col);
	printf("terminal name = %s\n", ttyname(0) ? ttyname(0) : errno_name(errno));
	printf("terminal group = %s\n", tcgetpgrp(0) == getpgrp() ? "ours" : "another");
}

static void print_stat(const char *path)
{
	struct stat found;
	char target[512] = "";

	if (lstat(path, &found)) {
		printf("stat %s = (%s)\n", path, errno_name(errno));
		return;
	}
	if (S_ISLNK(found.st_mode)) {
		ssize_t size = readlink(path, target, sizeof target - 1);

		target[size < 0 ? 0 : size] = '\0';
	}
	printf("stat %s = mode %o, owner %u:%u, rdev %u:%u%s%s\n", path, found.st_mode, found.st_uid, found.st_gid,
	       major(found.st_rdev), minor(found.st_rdev), *target ? " -> " : "", target);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static void print_directory(const char *path)
{
	struct dirent **names;
	int count = scandir(path, &names, NULL, by_name);

	if (count < 0)
		printf("directory %s = (%s)\n", path, errno_name(errno));
	for (int i = 0; i < count; i++) {
		char full[1024];

		if (strcmp(names[i]->d_name, ".") && strcmp(names[i]->d_name, "..")) {
			snprintf(full, sizeof full, "%s/%s", strcmp(path, "/") ? path : "", names[i]->d_name);
			print_stat(full);
		}
		free(names[i]);
	}
	if (count >= 0)
		free(names);
}

static void print_device(int type, unsigned int first, unsigned int second)
{
	char what[64], path[] = "/dev/shm/probed-node";

	snprintf(what, sizeof what, "%c %u:%u", type == S_IFBLK ? 'b' : 'c', first, second);
	unlink(path);
	/* in /dev/shm nodes cannot be opened (nodev): the tmpfs of /dev, where it can be written to */
	const char *places[] = { "/dev/probed-node", path };

	for (int i = 0; i < 2; i++) {
		int failed = mknod(places[i], type | 0600, makedev(first, second)) ? errno : 0;

		printf("device %s, mknod in place %d = %s\n", what, i, errno_name(failed));
		if (failed)
			continue;
		int fd = open(places[i], O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);

		printf("device %s, open in place %d = %s\n", what, i, errno_name(fd < 0 ? errno : 0));
		if (fd >= 0)
			close(fd);
		unlink(places[i]);
	}
}

static void print_namespaces(void)
{
	static const char *const names[] = { "cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time",
		"time_for_children", "user", "uts" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char path[64], target[64];

		snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
		ssize_t size = readlink(path, target, sizeof target - 1);

		target[size < 0 ? 0 : size] = '\0';
		printf("namespace %s = %s\n", names[i], target);
	}
}

static void print_keyrings(void)
{
	static const struct { const char *name; int id; } keyrings[] = { { "session", -3 }, { "process", -2 }, { "thread", -1 },
		{ "user", -4 }, { "user session", -5 } };
	for (size_t i = 0; i < sizeof keyrings / sizeof *keyrings; i++) {
		char text[512] = "";
		long size = syscall(SYS_keyctl, 6 /* KEYCTL_DESCRIBE */, keyrings[i].id, text, sizeof text - 1);

		printf("keyring %s = %s\n", keyrings[i].name, size < 0 ? errno_name(errno) : text);
	}
}

static void print_network(void)
{
	struct if_nameindex *found = if_nameindex();
	int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	for (struct if_nameindex *one = found; one && one->if_index; one++) {
		struct ifreq request = { 0 };

		strncpy(request.ifr_name, one->if_name, IFNAMSIZ - 1);
		int failed = ioctl(any, SIOCGIFFLAGS, &request);

		printf("interface %s = %s\n", one->if_name, failed ? errno_name(errno) : request.ifr_flags & IFF_UP ? "up" : "down");
	}
	if (found)
		if_freenameindex(found);
	if (any >= 0)
		close(any);
}

static void print_scheduling(void)
{
	cpu_set_t set;
	struct sched_param parameter;

	CPU_ZERO(&set);
	printf("scheduling processors = %d\n", sched_getaffinity(0, sizeof set, &set) ? -errno : CPU_COUNT(&set));
	printf("scheduling policy = %d\n", sched_getscheduler(0));
	printf("scheduling priority = %d\n", sched_getparam(0, &parameter) ? -errno : parameter.sched_priority);
	printf("scheduling nice = %d\n", getpriority(PRIO_PROCESS, 0));
	printf("scheduling input and output = %ld\n", syscall(SYS_ioprio_get, 1, 0));
	printf("scheduling timer slack = %d\n", prctl(PR_GET_TIMERSLACK));
}

static void print_process(void)
{
	struct utsname names;
	char cwd[4096];
	sigset_t mask;
	int ignored = 0, blocked = 0, value = 0;

	printf("process id = %d\n", getpid() == 1 ? 1 : 0);
	printf("process session = %s\n", getsid(0) == getpid() ? "leads" : "member");
	printf("process group = %s\n", getpgrp() == getpid() ? "leads" : "member");
	printf("process parent = %s\n", getppid() ? "seen" : "outside");
	sigprocmask(SIG_BLOCK, NULL, &mask);
	for (int number = 1; number < 65; number++) {
		struct sigaction action;

		blocked += sigismember(&mask, number) == 1;
		ignored += !sigaction(number, NULL, &action) && action.sa_handler == SIG_IGN;
	}
	printf("process signals blocked = %d, ignored = %d\n", blocked, ignored);
	value = umask(0);
	umask(value);
	printf("process umask = %o\n", value);
	printf("process personality = %x\n", personality(0xffffffff));
	printf("process dumpable = %d\n", prctl(PR_GET_DUMPABLE));
	printf("process securebits = %d\n", prctl(PR_GET_SECUREBITS));
	printf("process keeps capabilities = %d\n", prctl(PR_GET_KEEPCAPS));
	printf("process death signal = %d\n", prctl(PR_GET_PDEATHSIG, &value) ? -errno : value);
	printf("process subreaper = %d\n", prctl(PR_GET_CHILD_SUBREAPER, &value) ? -errno : value);
	printf("process transparent huge pages off = %d\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
	printf("process flushes = %d\n", prctl(57 /* PR_GET_IO_FLUSHER */, 0, 0, 0, 0) < 0 ? -errno : 0);
	printf("process machine checks = %d\n", prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
	printf("process speculation = %d %d\n", prctl(PR_GET_SPECULATION_CTRL, 0, 0, 0, 0), prctl(PR_GET_SPECULATION_CTRL, 1, 0, 0, 0));
	printf("process secure = %lu\n", getauxval(AT_SECURE));
	char name[17] = "";

	prctl(PR_GET_NAME, name);
	printf("process name = %s\n", name);
	print_text("process directory", getcwd(cwd, sizeof cwd) ? cwd : errno_name(errno));
	uname(&names);
	print_text("process host", names.nodename);
	print_text("process domain", names.domainname);
	for (int i = 0; environ[i]; i++) {
		char key[32];

		snprintf(key, sizeof key, "environment %d", i);
		print_text(key, environ[i]);
	}
}

static void print_limits(void)
{
	static const char *const names[] = { "cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile", "memlock", "as",
		"locks", "sigpending", "msgqueue", "nice", "rtprio", "rttime" };
	for (int number = 0; number < 16; number++) {
		struct rlimit limit;

		if (!getrlimit(number, &limit))
			printf("limit %s = %lld %lld\n", names[number], (long long)limit.rlim_cur, (long long)limit.rlim_max);
	}
}

int main(int count, char **words)
{
	static char buffer[1 << 16];

	setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
	print_descriptors();
	print_status();
	print_process();
	print_limits();
	print_scheduling();
	print_namespaces();
	print_keyrings();
	print_terminal();
	print_mounts();
	print_network();
	static const char *const files[] = { "/proc/self/cgroup", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups",
		"/proc/self/oom_score_adj", "/proc/self/coredump_filter", "/proc/self/loginuid", "/proc/self/attr/current",
		"/proc/self/attr/exec", "/proc/self/timens_offsets", "/proc/self/timerslack_ns", "/proc/self/cmdline",
		"/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/proc/sys/net/ipv4/ping_group_range",
		"/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/net/ipv4/ip_default_ttl", "/proc/sys/kernel/shm_rmid_forced",
		"/proc/sys/fs/mqueue/msg_max", "/proc/sys/user/max_user_namespaces" };
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		print_file(files[i]);
	static const char *const masked[] = { "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/acpi", "/proc/asound", "/sys/firmware", "/proc/interrupts",
		"/sys/devices/virtual/powercap" };
	for (size_t i = 0; i < sizeof masked / sizeof *masked; i++)
		print_masked(masked[i]);
	static const char *const writable[] = { "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname",
		"/proc/irq/default_smp_affinity", "/proc/self/oom_score_adj", "/proc/self/setgroups", "/sys/kernel/mm/ksm/run",
		"/sys/fs/cgroup/cgroup.procs", "/proc/sys/net/ipv4/ip_forward", "/etc/probed", "/probed" };
	for (size_t i = 0; i < sizeof writable / sizeof *writable; i++)
		print_writable(writable[i]);
	static const char *const directories[] = { "/", "/dev", "/dev/pts", "/dev/shm", "/proc/self/task", "/sys/fs/cgroup",
		"/sys/class/net" };
	for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
		print_stat(directories[i]);
		if (i && i != 4 && i != 5)
			print_directory(directories[i]);
	}
	static const struct { int type; unsigned int first, second; } devices[] = { { S_IFCHR, 1, 1 }, { S_IFCHR, 1, 3 },
		{ S_IFCHR, 1, 5 }, { S_IFCHR, 1, 7 }, { S_IFCHR, 1, 8 }, { S_IFCHR, 1, 11 }, { S_IFCHR, 5, 0 }, { S_IFCHR, 5, 1 },
		{ S_IFCHR, 5, 2 }, { S_IFCHR, 10, 200 }, { S_IFCHR, 10, 229 }, { S_IFCHR, 10, 237 }, { S_IFCHR, 136, 0 },
		{ S_IFBLK, 7, 0 } };
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		print_device(devices[i].type, devices[i].first, devices[i].second);
	puts("end");
	fflush(stdout);
	if (count > 1 && !strcmp(words[1], "hold"))
		for (;;)
			pause();
	return 0;
}
