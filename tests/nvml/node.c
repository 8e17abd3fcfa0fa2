/* stub.c with what a node's device plugin, labels and metrics ask beside: events, links, places, sensors.

   EVENTS is a file: each line "GPU XID GI CI" that is appended to it is an event (-1 -1: of the whole GPU). GPUs 0 and 1 are
   joined by NVLinks, and 2 and 3; RECOVERY is a file whose text is the recovery action of GPU 0, if it is there. */
#include "stub.c"
#include <stdlib.h>
#include <time.h>

typedef struct { long device; unsigned long long type, data; unsigned gi, ci; } event_data;
typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type, result; union { double d; unsigned u; unsigned long long ull; } value; } field_value;
typedef struct { unsigned char cluster[16]; unsigned status, clique; unsigned char state; } fabric_info;
typedef struct { long device; unsigned id, profile, start, size; } instance_info;

int nvmlEventSetCreate(long *set) { *set = 1; return 0; }
int nvmlDeviceGetSupportedEventTypes(long device, unsigned long long *types) { *types = 0x1f; return 0; }
int nvmlDeviceRegisterEvents(long device, unsigned long long types, long set) { return types == 8 && set == 1 ? 0 : INVALID_ARGUMENT; }

int nvmlEventSetWait_v2(long set, event_data *data, unsigned timeout_ms)
{
	static long offset;
	for (unsigned waited = 0; waited < timeout_ms; waited += 20) {
		FILE *file = fopen(EVENTS, "r");
		int gpu, gi, ci;
		unsigned xid;
		if (file) {
			fseek(file, offset, SEEK_SET);
			int found = fscanf(file, "%d %u %d %d\n", &gpu, &xid, &gi, &ci) == 4;
			offset = ftell(file);
			fclose(file);
			if (found && gpu == 99)
				return GPU_IS_LOST;
			if (found) {
				*data = (event_data){ gpu + 1, 8, xid, gi, ci };
				return 0;
			}
		}
		nanosleep(&(struct timespec){ 0, 20000000 }, 0);
	}
	return 10;
}

int nvmlDeviceGetNvLinkState(long device, unsigned link, unsigned *active)
{
	if (link >= 4 || device > 4)
		return NOT_SUPPORTED;
	*active = link < 2;
	return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(long device, unsigned link, pci_info *info)
{
	long other = (device - 1) ^ 1;
	memset(info, 0, sizeof *info);
	info->bus = 7 + 16 * other;
	return 0;
}

int nvmlDeviceGetGpuFabricInfo(long device, fabric_info *info)
{
	*info = (fabric_info){ { 0xab, 0xcd }, 0, 7, device > 2 ? 1 : 3 };
	return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(long one, long two, unsigned *level)
{
	*level = (one - 1) / 4 != (two - 1) / 4 ? 50 : 40;
	return 0;
}

int nvmlDeviceGetFieldValues(long device, int count, field_value *values)
{
	for (int i = 0; i < count; i++) {
		FILE *file = values[i].field == 230 && device == 1 ? fopen(RECOVERY, "r") : 0;
		values[i].result = NOT_SUPPORTED;
		/* NVLink: 38, 45, 52 and 59 are 32 bits; traffic, of all links, 64. */
		if (values[i].field == 38 || values[i].field == 45 || values[i].field == 52 || values[i].field == 59) {
			values[i].type = 1;
			values[i].value.ull = 0xdead00000000ULL | values[i].field;
			values[i].result = 0;
		}
		if ((values[i].field == 138 || values[i].field == 139) && values[i].scope == ~0U) {
			values[i].type = 3;
			values[i].value.ull = (1ULL << 33) + values[i].field;
			values[i].result = 0;
		}
		if (values[i].field == 82) {
			values[i].value.u = 44;
			values[i].result = 0;
		}
		if (file) {
			values[i].result = fscanf(file, "%u", &values[i].value.u) == 1 ? 0 : NOT_SUPPORTED;
			fclose(file);
		}
	}
	return 0;
}

int nvmlDeviceGetGpuInstanceById(long device, unsigned id, long *instance) { *instance = id; return 0; }

int nvmlGpuInstanceGetInfo(long instance, instance_info *info)
{
	*info = (instance_info){ 1, instance, 19, instance == 1 ? 0 : 4, instance == 1 ? 1 : 2 };
	return 0;
}

int nvmlDeviceGetPowerUsage(long device, unsigned *milliwatt) { *milliwatt = 71500; return 0; }
int nvmlDeviceGetClockInfo(long device, unsigned which, unsigned *mhz) { *mhz = which == 1 ? 1410 : 1593; return 0; }
int nvmlDeviceGetTemperature(long device, unsigned sensor, unsigned *celsius) { *celsius = 33; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(long device, unsigned long long *mj) { *mj = 5000000000ULL; return 0; }
int nvmlDeviceGetPcieReplayCounter(long device, unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetEncoderUtilization(long device, unsigned *percent, unsigned *us) { *percent = 5; *us = 100; return 0; }
int nvmlDeviceGetDecoderUtilization(long device, unsigned *percent, unsigned *us) { return NOT_SUPPORTED; }
int nvmlDeviceGetRemappedRows(long device, unsigned *c, unsigned *u, unsigned *p, unsigned *f) { *c = 1; *u = 2; *p = *f = 0; return 0; }

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned long long reference_us, violation_ns; } violation;
typedef struct { unsigned version, supported; } gpm_support;
typedef struct { unsigned id, result; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, count; long sample1, sample2; gpm_metric metrics[477]; } gpm_metrics;

int nvmlDeviceGetMemoryInfo_v2(long device, memory_v2 *info)
{
	if (info->version != 0x02000028)
		return INVALID_ARGUMENT;
	info->reserved = 512ULL << 20;
	return 0;
}

int nvmlDeviceGetViolationStatus(long device, unsigned policy, violation *spent)
{
	if (policy > 1)
		return NOT_SUPPORTED;
	spent->violation_ns = policy ? 7000000000ULL : 3;
	return 0;
}

int nvmlDeviceGetTotalEccErrors(long device, unsigned type, unsigned counter, unsigned long long *count) { *count = 10 * type + counter; return 0; }
int nvmlDeviceGetPcieThroughput(long device, unsigned which, unsigned *kb) { *kb = 1000 + which; return 0; }
int nvmlDeviceGetSerial(long device, char *text, unsigned size) { snprintf(text, size, "16500%ld", device); return 0; }
int nvmlDeviceGetVbiosVersion(long device, char *text, unsigned size) { snprintf(text, size, "96.00.61"); return 0; }

/* GPM, on the first GPU alone. A sample is 1 and up; each is freed, or the next scrape has none. */
static int gpm_samples;
int nvmlGpmQueryDeviceSupport(long device, gpm_support *support) { support->supported = device == 1; return support->version == 1 ? 0 : INVALID_ARGUMENT; }
int nvmlGpmSampleAlloc(long *sample) { *sample = ++gpm_samples; return 0; }
int nvmlGpmSampleFree(long sample) { return sample >= 1 && sample <= 2 ? 0 : INVALID_ARGUMENT; }
int nvmlGpmSampleGet(long device, long sample) { return device == 1 && sample >= 1 && sample <= 2 ? 0 : INVALID_ARGUMENT; }

int nvmlGpmMetricsGet(gpm_metrics *asked)
{
	if (asked->version != 1 || asked->sample1 != 1 || asked->sample2 != 2)
		return INVALID_ARGUMENT;
	for (unsigned i = 0; i < asked->count; i++) {
		asked->metrics[i].result = asked->metrics[i].id == 11 ? NOT_SUPPORTED : 0;
		asked->metrics[i].value = asked->metrics[i].id == 12 ? 0.0 / 0.0 : asked->metrics[i].id;
	}
	return 0;
}
