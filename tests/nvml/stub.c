/* A stand-in for libnvidia-ml.so.1: the calls that gpurun makes, for GPUS cards of which the first has two MIG devices when
   MIG is 1. The cards are those of tests/simdriver: same UUIDs, bus ids and minors. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;
typedef struct { unsigned sm, ce, dec, enc, jpeg, ofa, gi_slices, ci_slices; unsigned long long mb; } attributes;

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

static int is_mig(long device) { return device >= 100; }

#ifdef HOSTILE
#include "hostile.c"
#endif

int nvmlInit_v2(void)
{
#if defined HANG
	for (;;)
		pause();
#elif defined CRASH
	*(volatile int *)16 = 1;
#elif defined UNLOADED
	return DRIVER_NOT_LOADED;
#elif defined NOISY
	printf("{\"gpus\": \"a lie\"}\n");
	fflush(stdout);
	if (fork() == 0) {
		prctl(PR_SET_NAME, "nvml-stub-stays");
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
		for (;;)
			pause();
	}
#elif defined HOSTILE
	return attack();
#endif
	return 0;
}

int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code)
{
#ifdef HOSTILE
	return tried;
#endif
	return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : code == GPU_IS_LOST ? "GPU is lost" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, long *device)
{
#ifdef LOST
	if (index == 1)
		return GPU_IS_LOST;
#endif
	*device = index + 1;
	return 0;
}

int nvmlDeviceGetUUID(long device, char *text, unsigned size)
{
	if (is_mig(device))
		snprintf(text, size, "MIG-%08lx-5197-5a6f-8c59-0a1b2c3d4e5f", device);
	else
		snprintf(text, size, "GPU-%08lx-5197-4a6f-8c59-0a1b2c3d4e5f", device - 1);
	return 0;
}

#ifdef LIMITS
/* Driver 615: what is set is told to the socket LIMITS, with whether files of the cgroup can be written, as NVML does. */
typedef struct { const char *name_space; unsigned long long soft, hard; } memory_limits;

int nvmlDeviceGetHandleByUUID(const char *uuid, long *device)
{
	char text[64];
	for (*device = 1; *device <= GPUS; ++*device) {
		nvmlDeviceGetUUID(*device, text, sizeof text);
		if (strcmp(text, uuid) == 0)
			return 0;
	}
	return NOT_FOUND;
}

int nvmlDeviceSetMemoryLimits_v1(long device, memory_limits *limits)
{
	struct sockaddr_un to = { AF_UNIX, LIMITS };
	char text[4096];
	int out = socket(AF_UNIX, SOCK_DGRAM, 0);

	snprintf(text, sizeof text, "%s/cgroup.max.depth", limits->name_space);
	const char *may = access(limits->name_space, F_OK) < 0 ? "gone" : open(text, O_WRONLY) < 0 ? "closed" : "open";
	snprintf(text, sizeof text, "%ld %llu %lld %s %s", device - 1, limits->soft >> 20,
		 limits->hard == ~0ULL ? -1LL : (long long)(limits->hard >> 20), may, limits->name_space);
	if (sendto(out, text, strlen(text), 0, (struct sockaddr *)&to, sizeof to) < 0)
		return NO_PERMISSION;
	return 0;
}
#endif

int nvmlDeviceGetMinorNumber(long device, unsigned *minor) { *minor = GPUS - device; return 0; }

#ifndef OLD
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "999.88.77"); return 0; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { snprintf(text, size, "13.999.88.77"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13010; return 0; }

int nvmlDeviceGetPciInfo_v3(long device, pci_info *info)
{
	memset(info, 0, sizeof *info);
	info->bus = 7 + 16 * (device - 1);
	return 0;
}

int nvmlDeviceGetName(long device, char *text, unsigned size)
{
	snprintf(text, size, device == 101 ? NAME " MIG 1g.10gb" : NAME);
	return 0;
}

/* The second GPU is coherent, and the third does not say. */
int nvmlDeviceGetAddressingMode(long device, unsigned *mode)
{
	if (mode[0] != 0x1000008)
		return INVALID_ARGUMENT;
	if (device == 3)
		return GPU_IS_LOST;
	if (device == 4)
		return NOT_SUPPORTED;
	mode[1] = device == 2 ? 2 : 1;
	return 0;
}

int nvmlDeviceGetBrand(long device, unsigned *brand) { *brand = 14; return 0; }
int nvmlDeviceGetArchitecture(long device, unsigned *architecture) { *architecture = 9; return 0; }
int nvmlDeviceGetCudaComputeCapability(long device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }

int nvmlDeviceGetMigMode(long device, unsigned *current, unsigned *pending)
{
	if (device != 1)
		return NOT_SUPPORTED;
	*current = *pending = MIG;
	return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(long device, unsigned *count) { *count = 7; return 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(long device, unsigned index, long *mig)
{
	if (index != 0 && index != 2) /* a hole between the two */
		return NOT_FOUND;
	*mig = index ? 102 : 101;
	return 0;
}

int nvmlDeviceGetGpuInstanceId(long mig, unsigned *id) { *id = mig == 101 ? 1 : 2; return 0; }
int nvmlDeviceGetComputeInstanceId(long mig, unsigned *id) { *id = 0; return 0; }

int nvmlDeviceGetAttributes_v2(long mig, attributes *share)
{
	memset(share, 0, sizeof *share);
	share->gi_slices = 2;
	share->ci_slices = 1;
	share->mb = 19968;
	return 0;
}

int nvmlDeviceGetMemoryInfo(long device, memory *info)
{
	info->total = 80ULL << 30;
	info->used = 3ULL << 30;
	info->free = info->total - info->used;
	return 0;
}

/* NVLink (2) connects the second GPU with the third, the fourth with the fifth, and so on. */
int nvmlDeviceGetP2PStatus(long device, long peer, unsigned what, unsigned *status)
{
	*status = what == 2 && device / 2 == peer / 2 && device > 1 && peer > 1 ? 0 : 6;
	return 0;
}

int nvmlDeviceGetUtilizationRates(long device, utilization *rates)
{
	rates->gpu = 42;
	rates->memory = 7;
	return device == 1 && MIG ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(long device, unsigned *count, process *table)
{
	unsigned room = *count;
	*count = device == 1 ? 100 : 0; /* more than fit at first */
	if (room < *count)
		return INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < *count; i++)
		table[i] = (process){ PID + i, i ? 1ULL << 20 : ~0ULL, MIG ? 1 : ~0U, MIG ? 0 : ~0U };
	return 0;
}
#endif
