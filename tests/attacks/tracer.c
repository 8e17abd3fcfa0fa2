/* Traces each process that comes into its pid namespace, in its first moment, and says what it could use of it.
 *
 * "up", then a line for each one that was caught before it had become its program:
 *     caught PID exe=... cap=PERMITTED eff=EFFECTIVE uid=... root=... fds=NUMBER:TARGET,... maps=WRITABLE
 * It ends with SIGTERM.  Wants CAP_SYS_PTRACE. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t over;

static void end(int number)
{
	(void)number;
	over = 1;
}

static void print_link(const char *what, int pid, const char *name)
{
	char path[64], text[512];

	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	ssize_t size = readlink(path, text, sizeof text - 1);
	text[size < 0 ? 0 : size] = '\0';
	for (char *blank = text; (blank = strchr(blank, ' '));) /* "/memfd:gpurun (deleted)" */
		*blank = '_';
	printf(" %s=%s", what, text);
}

static void print_status(int pid)
{
	char path[64], line[256];

	snprintf(path, sizeof path, "/proc/%d/status", pid);
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file)) {
		char *end_of_line = strchr(line, '\n');

		if (end_of_line)
			*end_of_line = '\0';
		if (strncmp(line, "CapPrm:", 7) == 0)
			printf(" cap=%s", line + 8);
		else if (strncmp(line, "CapEff:", 7) == 0)
			printf(" eff=%s", line + 8);
		else if (strncmp(line, "Uid:", 4) == 0)
			printf(" uid=%d", atoi(line + 4));
	}
	if (file)
		fclose(file);
}

static void print_descriptors(int pid)
{
	char path[64], text[512];
	const char *between = "";

	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	DIR *directory = opendir(path);
	printf(" fds=");
	for (struct dirent *entry; directory && (entry = readdir(directory));) {
		if (entry->d_name[0] == '.')
			continue;
		ssize_t size = readlinkat(dirfd(directory), entry->d_name, text, sizeof text - 1);
		text[size < 0 ? 0 : size] = '\0';
		for (char *at = text; *at; at++)
			if (*at == ' ' || *at == ',')
				*at = '_';
		printf("%s%s:%s", between, entry->d_name, text);
		between = ",";
	}
	if (directory)
		closedir(directory);
}

static int is_program(int pid, const char *program)
{
	char path[64], text[512];

	snprintf(path, sizeof path, "/proc/%d/exe", pid);
	ssize_t size = readlink(path, text, sizeof text - 1);
	if (size < 0)
		return 1;
	text[size] = '\0';
	return strcmp(text, program) == 0;
}

int main(int count, char **words)
{
	int last = getpid();

	if (count != 2)
		return 2;
	signal(SIGTERM, end);
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("up");
	while (!over) {
		/* So far ahead: children of the init, which a filter can make it take, have used up numbers. */
		for (int pid = last + 1; pid < last + 65; pid++) {
			if (ptrace(PTRACE_SEIZE, pid, 0, 0) < 0) {
				if (errno != ESRCH && pid > last)
					last = pid;
				continue;
			}
			ptrace(PTRACE_INTERRUPT, pid, 0, 0);
			int status, stopped = waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status);

			if (stopped && !is_program(pid, words[1])) {
				printf("caught %d", pid);
				print_link("exe", pid, "exe");
				print_link("root", pid, "root");
				print_link("cwd", pid, "cwd");
				print_status(pid);
				print_descriptors(pid);
				putchar('\n');
			}
			if (stopped)
				ptrace(PTRACE_DETACH, pid, 0, 0);
			last = pid;
		}
	}
	return 0;
}
