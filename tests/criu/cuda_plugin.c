/* A stand-in for CRIU's CUDA plugin (plugin interface 0.2, CRIU 4): calls cuda-checkpoint where that one does, in its order.
   It knows of no CUDA thread, so it asks for each process. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RESUME_DEVICES_LATE = 9, PAUSE_DEVICES = 10, CHECKPOINT_DEVICES = 11, HOOKS = 12 };
enum { DUMP, PRE_DUMP, RESTORE };

static int paused[64], emptied[64], count;

static int action(const char *name, int pid)
{
	char number[16];
	int status;
	snprintf(number, sizeof number, "%d", pid);
	pid_t child = fork();
	if (child == 0) {
		execlp("cuda-checkpoint", "cuda-checkpoint", "--action", name, "--pid", number, (char *)0);
		_exit(127);
	}
	while (waitpid(child, &status, 0) < 0)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int pause_devices(int pid)
{
	int status = action("lock", pid);
	if (status == 0 && count < 64)
		paused[count++] = pid;
	return status == 0 || status == 3 ? 0 : -1; /* 3: it does not compute */
}

static int checkpoint_devices(int pid)
{
	for (int i = 0; i < count; i++)
		if (paused[i] == pid) {
			emptied[i] = 1;
			return action("checkpoint", pid) ? -1 : 0;
		}
	return 0;
}

static int resume_devices(int pid)
{
	int status = action("restore", pid);
	if (status == 3)
		return 0;
	return status || action("unlock", pid) ? -1 : 0;
}

static int begin(int stage)
{
	return stage == PRE_DUMP;
}

/* What was not to end: the dump has failed. */
static void finish(int stage, int error)
{
	for (int i = 0; stage == DUMP && error && i < count; i++) {
		if (emptied[i])
			action("restore", paused[i]);
		action("unlock", paused[i]);
	}
}

struct {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int error);
	unsigned version, hooks_count;
	void *hooks[HOOKS];
} CR_PLUGIN_DESC = {
	"cuda_plugin", begin, finish, 2 << 8, HOOKS,
	{ [RESUME_DEVICES_LATE] = resume_devices, [PAUSE_DEVICES] = pause_devices, [CHECKPOINT_DEVICES] = checkpoint_devices },
};
