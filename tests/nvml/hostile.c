/* What a library could try with the rights of root: each attempt by its name, and the errno that it got (0: it succeeded). */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

static char tried[2048];

static void attempt(const char *what, long result)
{
	int error = result < 0 ? errno : 0;
	snprintf(tried + strlen(tried), sizeof tried - strlen(tried), "%s=%d ", what, error);
}

static long opened(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0600);
	int error = errno;
	if (fd >= 0)
		close(fd);
	errno = error;
	return fd;
}

static int attack(void)
{
	char *const argv[] = { "true", 0 };
	attempt("read", opened("/proc/self/status", O_RDONLY));
	attempt("null", opened("/dev/null", O_RDWR));
	attempt("unix", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	attempt("write", opened(PLACE "/there", O_WRONLY));
	attempt("create", opened(PLACE "/new", O_WRONLY | O_CREAT));
	attempt("mkdir", mkdir(PLACE "/directory", 0700));
	attempt("unlink", unlink(PLACE "/there"));
	attempt("symlink", symlink("/", PLACE "/link"));
	attempt("chmod", chmod(PLACE "/there", 0777));
	attempt("chown", chown(PLACE "/there", 1, 1));
	attempt("mknod", mknod(PLACE "/node", S_IFCHR | 0600, makedev(1, 3)));
	attempt("sysctl", opened("/proc/sys/kernel/core_pattern", O_WRONLY));
	attempt("mount", mount("none", PLACE, "tmpfs", 0, 0));
	attempt("unshare", unshare(CLONE_NEWNS));
	attempt("inet", socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	attempt("netlink", socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0));
	attempt("kill", kill(getppid(), 0));
	attempt("ptrace", ptrace(PTRACE_SEIZE, getppid(), 0, 0));
	attempt("bpf", syscall(SYS_bpf, 0, 0, 0));
	attempt("module", syscall(SYS_init_module, 0, 0, ""));
	attempt("execve", execve("/bin/true", argv, argv + 1));
	return 999;
}
