/* A stand-in for libnvidia-ml.so.1 of GPUS cards that MIG can divide: A100-SXM4-40GB, those of tests/simdriver (same UUIDs,
   bus ids, minors). The last UNABLE of them are T4, which cannot be divided.

   What they are divided into stands in the file DIRECTORY/state, and in /proc/driver/nvidia/capabilities below TREE; each call
   that changes something is a line of DIRECTORY/log. Both may be relative: from the library's own directory, which a pod sees
   elsewhere than its node. DIRECTORY/control is what tests want of it, a line each:
     fail FUNCTION NTH CODE   the NTH call of FUNCTION (from 1; in this process) returns CODE
     kill WHEN NTH            the NTH line of the log kills who called: "before" or "after" the change is done
     sticky GPU               a change of the mode waits for a reset
     lost GPU                 it has fallen off the bus
     busy GPU PID             a process computes on it
     silent                   profiles are not told while the mode is off, as with the driver of an A100
   Nothing but what nvml.h promises: errors are those of a driver. */
#include "mig_state.c"

/* Handles: a card is 1 and up; an instance has its number above that, a compute instance above both. */
#define CARD(handle) (((handle) & 0xff) - 1)
#define GI(handle) ((((handle) >> 8) & 0xff) - 1)
#define CI(handle) ((((handle) >> 16) & 0xff) - 1)
#define INSTANCE(card, gi) (((card) + 1) | ((gi) + 1L) << 8)
#define COMPUTE(card, gi, ci) (INSTANCE(card, gi) | ((ci) + 1L) << 16)
#define IS_MIG(handle) ((handle) >> 16)

int nvmlInit_v2(void) { load(); return 0; }
int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code)
{
	switch (code) {
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NO_PERMISSION: return "Insufficient Permissions";
	case NOT_FOUND: return "Not Found";
	case GPU_IS_LOST: return "GPU is lost";
	case IN_USE: return "In use by another client";
	case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	}
	return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "999.88.77"); return 0; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { snprintf(text, size, "13.999.88.77"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13010; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, long *device)
{
	if (asked("lost", index))
		return GPU_IS_LOST;
	*device = index + 1;
	return 0;
}

int nvmlDeviceGetUUID(long device, char *text, unsigned size)
{
	if (IS_MIG(device))
		snprintf(text, size, "MIG-%08lx-%04lx-%04lx-8c59-0a1b2c3d4e5f", CARD(device), GI(device), CI(device));
	else
		snprintf(text, size, "GPU-%08lx-5197-4a6f-8c59-0a1b2c3d4e5f", CARD(device));
	return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, long *device)
{
	char text[64];
	for (unsigned index = 0; index < GPUS; index++) {
		nvmlDeviceGetUUID(index + 1, text, sizeof text);
		if (!strcmp(text, uuid))
			return nvmlDeviceGetHandleByIndex_v2(index, device);
	}
	return NOT_FOUND;
}

static int able(long device) { return CARD(device) < GPUS - UNABLE; }
int nvmlDeviceGetMinorNumber(long device, unsigned *minor) { *minor = GPUS - device; return 0; }
int nvmlDeviceGetName(long device, char *text, unsigned size) { snprintf(text, size, able(device) ? "NVIDIA A100-SXM4-40GB" : "Tesla T4"); return IS_MIG(device) ? NOT_SUPPORTED : 0; }
int nvmlDeviceGetBrand(long device, unsigned *brand) { *brand = 14; return 0; }
int nvmlDeviceGetArchitecture(long device, unsigned *architecture) { *architecture = 7; return 0; }
int nvmlDeviceGetCudaComputeCapability(long device, int *major, int *minor) { *major = 8; *minor = 0; return 0; }

int nvmlDeviceGetPciInfo_v3(long device, pci_info *info)
{
	memset(info, 0, sizeof *info);
	info->bus = 7 + 16 * CARD(device);
	info->id = able(device) ? 0x20b010de : 0x1eb810de;
	info->subsystem = 0x134f10de;
	return 0;
}

int nvmlDeviceGetMemoryInfo(long device, memory *info)
{
	info->total = IS_MIG(device) ? table[cards[CARD(device)].gi[GI(device)].profile].info.mb << 20 : 42505273344ULL;
	info->used = 0;
	info->free = info->total;
	return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(long device, unsigned *count, process *list)
{
	unsigned room = *count, pid, n = 0;
	long gpu;
	char line[256];
	FILE *file = open_in("control", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "busy %ld %u", &gpu, &pid) == 2 && gpu == CARD(device) && n < room)
			list[n++] = (process){ pid, 1 << 20, ~0U, ~0U };
	if (file)
		fclose(file);
	*count = n;
	return 0;
}

int nvmlDeviceGetMigMode(long device, unsigned *current, unsigned *pending)
{
	MAY_FAIL;
	if (!able(device))
		return NOT_SUPPORTED;
	*current = cards[CARD(device)].mode;
	*pending = cards[CARD(device)].pending;
	return 0;
}

int nvmlDeviceSetMigMode(long device, unsigned mode, unsigned *status)
{
	MAY_FAIL;
	if (!able(device))
		return NOT_SUPPORTED;
	if (geteuid())
		return NO_PERMISSION;
	begin("mode %ld %ld", CARD(device), mode, 0, 0);
	struct card *card = &cards[CARD(device)];
	for (int gi = 0; gi < MAX_GI; gi++)
		if (card->gi[gi].there)
			return IN_USE;
	card->pending = mode;
	*status = 0;
	if (asked("busy", CARD(device)))
		*status = IN_USE;
	else if (card->mode != mode && asked("sticky", CARD(device)))
		*status = RESET_REQUIRED;
	else
		card->mode = mode;
	done();
	return 0;
}

int nvmlDeviceGetGpuInstanceProfileInfo(long device, unsigned number, gi_profile *info)
{
	MAY_FAIL;
	if (number >= GI_PROFILES)
		return INVALID_ARGUMENT;
	if (!able(device) || !table[number].size || (!cards[CARD(device)].mode && asked("silent", -1)))
		return NOT_SUPPORTED;
	*info = table[number].info;
	return 0;
}

static int by_id(unsigned id)
{
	for (int number = 0; number < GI_PROFILES; number++)
		if (table[number].size && table[number].info.id == id)
			return number;
	return -1;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(long device, unsigned id, placement *list, unsigned *count)
{
	int number = by_id(id);
	if (number < 0)
		return INVALID_ARGUMENT;
	unsigned n = 0;
	for (unsigned start = 0; start < 8; start++)
		if (table[number].starts >> start & 1) {
			if (list)
				list[n] = (placement){ start, table[number].size };
			n++;
		}
	*count = n;
	return 0;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(long device, unsigned id, const placement *place, long *instance)
{
	MAY_FAIL;
	int number = by_id(id), free_one = -1, alike = 1;
	if (geteuid())
		return NO_PERMISSION;
	begin("create %ld %ld %ld %ld", CARD(device), number, place->start, place->size);
	struct card *card = &cards[CARD(device)];
	if (!able(device) || !card->mode)
		return NOT_SUPPORTED;
	if (number < 0 || place->start > 7 || place->size != table[number].size || !(table[number].starts >> place->start & 1))
		return INVALID_ARGUMENT;
	gi_profile sum = table[number].info;
	for (int gi = MAX_GI - 1; gi > 0; gi--) { /* 0 is the one of the whole GPU */
		if (!card->gi[gi].there) {
			free_one = gi;
			continue;
		}
		const gi_profile *other = &table[card->gi[gi].profile].info;
		placement theirs = card->gi[gi].place;
		if (place->start < theirs.start + theirs.size && theirs.start < place->start + place->size)
			return INSUFFICIENT_RESOURCES;
		sum.sm += other->sm, sum.ce += other->ce, sum.dec += other->dec, sum.jpeg += other->jpeg, sum.ofa += other->ofa;
		alike += card->gi[gi].profile == (unsigned)number;
	}
	const gi_profile *whole = &table[4].info;
	if (sum.sm > whole->sm || sum.ce > whole->ce || sum.dec > whole->dec || sum.jpeg > whole->jpeg || sum.ofa > whole->ofa)
		return INSUFFICIENT_RESOURCES;
	if (alike > (int)table[number].info.instances || free_one < 0)
		return INSUFFICIENT_RESOURCES;
	memset(&card->gi[free_one], 0, sizeof card->gi[free_one]);
	card->gi[free_one].there = 1;
	card->gi[free_one].profile = number;
	card->gi[free_one].place = *place;
	*instance = INSTANCE(CARD(device), free_one);
	done();
	return 0;
}

int nvmlDeviceGetGpuInstances(long device, unsigned id, long *list, unsigned *count)
{
	MAY_FAIL;
	if (!cards[CARD(device)].mode)
		return NOT_SUPPORTED;
	*count = 0;
	for (int gi = 0; gi < MAX_GI; gi++)
		if (cards[CARD(device)].gi[gi].there && cards[CARD(device)].gi[gi].profile == (unsigned)by_id(id))
			list[(*count)++] = INSTANCE(CARD(device), gi);
	return 0;
}

int nvmlDeviceGetGpuInstanceById(long device, unsigned id, long *instance)
{
	if (id >= MAX_GI || !cards[CARD(device)].gi[id].there)
		return NOT_FOUND;
	*instance = INSTANCE(CARD(device), id);
	return 0;
}

int nvmlGpuInstanceGetInfo(long instance, gi_info *info)
{
	unsigned number = cards[CARD(instance)].gi[GI(instance)].profile;
	*info = (gi_info){ CARD(instance) + 1, GI(instance), table[number].info.id, cards[CARD(instance)].gi[GI(instance)].place };
	return 0;
}

int nvmlGpuInstanceDestroy(long instance)
{
	MAY_FAIL;
	if (geteuid())
		return NO_PERMISSION;
	begin("destroy %ld %ld", CARD(instance), GI(instance), 0, 0);
	for (int ci = 0; ci < MAX_CI; ci++)
		if (cards[CARD(instance)].gi[GI(instance)].ci[ci])
			return IN_USE;
	cards[CARD(instance)].gi[GI(instance)].there = 0;
	done();
	return 0;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(long instance, unsigned number, unsigned engine, ci_profile *info)
{
	MAY_FAIL;
	const gi_profile *whole = &table[cards[CARD(instance)].gi[GI(instance)].profile].info;
	if (number >= CI_PROFILES || engine)
		return INVALID_ARGUMENT;
	if (!ci_slices[number] || ci_slices[number] > whole->slices)
		return NOT_SUPPORTED;
	unsigned slices = ci_slices[number];
	*info = (ci_profile){ number, slices, whole->slices / slices, slices * SM_PER_SLICE, whole->ce, whole->dec };
	return 0;
}

int nvmlGpuInstanceCreateComputeInstance(long instance, unsigned id, long *compute)
{
	MAY_FAIL;
	if (geteuid())
		return NO_PERMISSION;
	begin("compute %ld %ld %ld", CARD(instance), GI(instance), id, 0);
	unsigned *ci = cards[CARD(instance)].gi[GI(instance)].ci, used = 0, n = 0;
	for (int i = 0; i < MAX_CI; i++)
		used += ci[i];
	if (id >= CI_PROFILES || !ci_slices[id])
		return INVALID_ARGUMENT;
	if (used + ci_slices[id] > table[cards[CARD(instance)].gi[GI(instance)].profile].info.slices)
		return INSUFFICIENT_RESOURCES;
	while (ci[n])
		n++;
	ci[n] = ci_slices[id];
	*compute = COMPUTE(CARD(instance), GI(instance), n);
	done();
	return 0;
}

int nvmlGpuInstanceGetComputeInstances(long instance, unsigned id, long *list, unsigned *count)
{
	*count = 0;
	for (int ci = 0; ci < MAX_CI; ci++)
		if (cards[CARD(instance)].gi[GI(instance)].ci[ci] && cards[CARD(instance)].gi[GI(instance)].ci[ci] == ci_slices[id])
			list[(*count)++] = COMPUTE(CARD(instance), GI(instance), ci);
	return 0;
}

int nvmlGpuInstanceGetComputeInstanceById(long instance, unsigned id, long *compute)
{
	if (id >= MAX_CI || !cards[CARD(instance)].gi[GI(instance)].ci[id])
		return NOT_FOUND;
	*compute = COMPUTE(CARD(instance), GI(instance), id);
	return 0;
}

int nvmlComputeInstanceGetInfo_v2(long compute, ci_info *info)
{
	unsigned slices = cards[CARD(compute)].gi[GI(compute)].ci[CI(compute)];
	*info = (ci_info){ CARD(compute) + 1, INSTANCE(CARD(compute), GI(compute)), CI(compute), 0, { 0, slices } };
	return 0;
}

int nvmlComputeInstanceDestroy(long compute)
{
	MAY_FAIL;
	if (geteuid())
		return NO_PERMISSION;
	begin("uncompute %ld %ld %ld", CARD(compute), GI(compute), CI(compute), 0);
	if (asked("busy", CARD(compute)))
		return IN_USE;
	cards[CARD(compute)].gi[GI(compute)].ci[CI(compute)] = 0;
	done();
	return 0;
}

/* The MIG devices, which are the compute instances, as device plugins see them. */
int nvmlDeviceGetMaxMigDeviceCount(long device, unsigned *count) { *count = 7; return 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(long device, unsigned index, long *mig)
{
	for (int gi = 0; gi < MAX_GI; gi++)
		for (int ci = 0; ci < MAX_CI; ci++)
			if (cards[CARD(device)].gi[gi].there && cards[CARD(device)].gi[gi].ci[ci] && !index--) {
				*mig = COMPUTE(CARD(device), gi, ci);
				return 0;
			}
	return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(long mig, unsigned *id) { *id = GI(mig); return 0; }
int nvmlDeviceGetComputeInstanceId(long mig, unsigned *id) { *id = CI(mig); return 0; }

int nvmlDeviceGetAttributes_v2(long mig, attributes *share)
{
	const gi_profile *whole = &table[cards[CARD(mig)].gi[GI(mig)].profile].info;
	unsigned slices = cards[CARD(mig)].gi[GI(mig)].ci[CI(mig)];
	*share = (attributes){ slices * SM_PER_SLICE, whole->ce, whole->dec, 0, whole->jpeg, whole->ofa, whole->slices, slices, whole->mb };
	return 0;
}
