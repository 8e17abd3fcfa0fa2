/* mig.c's state, and what tests want of it: see there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;
typedef struct { unsigned sm, ce, dec, enc, jpeg, ofa, gi_slices, ci_slices; unsigned long long mb; } attributes;
typedef struct { unsigned start, size; } placement;
typedef struct { unsigned id, p2p, slices, instances, sm, ce, dec, enc, jpeg, ofa; unsigned long long mb; } gi_profile;
typedef struct { unsigned id, slices, instances, sm, ce, dec, enc, jpeg, ofa; } ci_profile;
typedef struct { long device; unsigned id, profile; placement place; } gi_info;
typedef struct { long device, instance; unsigned id, profile; placement place; } ci_info;

enum {
	INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15,
	RESET_REQUIRED = 16, IN_USE = 19, INSUFFICIENT_RESOURCES = 23
};
enum { MAX_GI = 15, MAX_CI = 8, GI_PROFILES = 18, CI_PROFILES = 9, SM_PER_SLICE = 14 };

static struct card {
	unsigned mode, pending;
	struct { int there; unsigned profile; placement place; unsigned ci[MAX_CI]; /* slices, 0: none */ } gi[MAX_GI];
} cards[GPUS];

/* Number → what nvidia-smi mig -lgip says of an A100-SXM4-40GB; the starts are bits. */
static const struct { gi_profile info; unsigned size, starts; } table[GI_PROFILES] = {
	[0] = { { 19, 0, 1, 7, 14, 1, 0, 0, 0, 0, 4864 }, 1, 0x7f },
	[1] = { { 14, 0, 2, 3, 28, 2, 1, 0, 0, 0, 9856 }, 2, 0x15 },
	[2] = { { 9, 0, 3, 2, 42, 3, 2, 0, 0, 0, 19968 }, 4, 0x11 },
	[3] = { { 5, 0, 4, 1, 56, 4, 2, 0, 0, 0, 19968 }, 4, 0x01 },
	[4] = { { 0, 0, 7, 1, 98, 7, 5, 0, 1, 1, 40192 }, 8, 0x01 },
	[7] = { { 20, 0, 1, 1, 14, 1, 1, 0, 1, 1, 4864 }, 1, 0x7f },
	[9] = { { 15, 0, 1, 4, 14, 1, 1, 0, 0, 0, 9856 }, 2, 0x55 },
};
static const unsigned ci_slices[CI_PROFILES] = { 1, 2, 3, 4, 7 };

/* The path of the file NAME of BASE. */
static const char *in(const char *base, const char *name)
{
	static char path[1024];
	Dl_info own;
	if (*base == '/' || !dladdr(cards, &own))
		snprintf(path, sizeof path, "%s/%s", base, name);
	else
		snprintf(path, sizeof path, "%.*s/%s/%s", (int)(strrchr(own.dli_fname, '/') - own.dli_fname), own.dli_fname, base, name);
	return path;
}
static FILE *open_in(const char *name, const char *mode) { return fopen(in(DIRECTORY, name), mode); }

static int asked(const char *what, long number)
{
	char word[64];
	long found;
	FILE *file = open_in("control", "r");
	char line[256];
	int yes = 0;
	while (file && fgets(line, sizeof line, file))
		yes |= sscanf(line, "%63s %ld", word, &found) >= 1 && !strcmp(word, what) && (number < 0 || found == number);
	if (file)
		fclose(file);
	return yes;
}

/* The code with which a call of FUNCTION is to fail now, or 0. */
static int refused(const char *function)
{
	static struct { char name[64]; int calls; } counts[32];
	int n = 0, at, code, result = 0;
	char name[64], line[256];
	while (n < 31 && counts[n].name[0] && strcmp(counts[n].name, function))
		n++;
	snprintf(counts[n].name, sizeof counts[n].name, "%s", function);
	counts[n].calls++;
	FILE *file = open_in("control", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "fail %63s %d %d", name, &at, &code) == 3 && !strcmp(name, function) && at == counts[n].calls)
			result = code;
	if (file)
		fclose(file);
	return result;
}
#define MAY_FAIL do { int code = refused(__func__ + 4); if (code) return code; } while (0)

static void load(void)
{
	memset(cards, 0, sizeof cards);
	FILE *file = open_in("state", "r");
	char what[8];
	unsigned gpu, a, b, c, d;
	while (file && fscanf(file, "%7s %u", what, &gpu) == 2 && gpu < GPUS) {
		struct card *card = &cards[gpu];
		if (!strcmp(what, "mode") && fscanf(file, "%u %u", &a, &b) == 2)
			card->mode = a, card->pending = b;
		else if (!strcmp(what, "gi") && fscanf(file, "%u %u %u %u", &a, &b, &c, &d) == 4)
			card->gi[a].there = 1, card->gi[a].profile = b, card->gi[a].place = (placement){ c, d };
		else if (!strcmp(what, "ci") && fscanf(file, "%u %u %u", &a, &b, &c) == 3)
			card->gi[a].ci[b] = c;
	}
	if (file)
		fclose(file);
}

/* A file of /proc/driver/nvidia/capabilities, there or not. */
static void capability(unsigned gpu, int gi, int ci, int there)
{
	unsigned minor = GPUS - 1 - gpu;
	char path[1200], part[32] = "";
	if (ci >= 0)
		snprintf(part, sizeof part, "/ci%d", ci);
	int end = snprintf(path, sizeof path, "%s/gpu%u", in(TREE, "proc/driver/nvidia/capabilities"), minor);
	mkdir(path, 0755);
	end += snprintf(path + end, sizeof path - end, "/mig");
	mkdir(path, 0755);
	snprintf(path + end, sizeof path - end, "/gi%d%s", gi, part);
	if (there)
		mkdir(path, 0755);
	end = strlen(path);
	strcpy(path + end, "/access");
	if (!there) {
		unlink(path);
		path[end] = 0;
		rmdir(path);
		return;
	}
	FILE *file = fopen(path, "w");
	if (file) {
		fprintf(file, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", 3 + 135 * minor + 9 * gi + 1 + ci);
		fclose(file);
	}
}

static void save(void)
{
	FILE *file = open_in("state.new", "w");
	for (unsigned gpu = 0; gpu < GPUS; gpu++) {
		fprintf(file, "mode %u %u %u\n", gpu, cards[gpu].mode, cards[gpu].pending);
		for (int gi = 0; gi < MAX_GI; gi++) {
			int there = cards[gpu].gi[gi].there;
			if (there) {
				placement place = cards[gpu].gi[gi].place;
				capability(gpu, gi, -1, 1);
				fprintf(file, "gi %u %d %u %u %u\n", gpu, gi, cards[gpu].gi[gi].profile, place.start, place.size);
			}
			for (int ci = 0; ci < MAX_CI; ci++) {
				capability(gpu, gi, ci, there && cards[gpu].gi[gi].ci[ci]);
				if (there && cards[gpu].gi[gi].ci[ci])
					fprintf(file, "ci %u %d %d %u\n", gpu, gi, ci, cards[gpu].gi[gi].ci[ci]);
			}
			if (!there)
				capability(gpu, gi, -1, 0);
		}
	}
	fclose(file);
	char new[1024];
	strcpy(new, in(DIRECTORY, "state.new"));
	rename(new, in(DIRECTORY, "state"));
}

/* Kill who called, and end with it, if this line of the log is the one. */
static void maybe_killed(const char *when, int lines)
{
	char line[256], word[16];
	int at;
	FILE *file = open_in("control", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "kill %15s %d", word, &at) == 2 && !strcmp(word, when) && at == lines) {
			kill(getppid(), SIGKILL);
			for (;;)
				pause(); /* until it takes us with it */
		}
	if (file)
		fclose(file);
}

static int log_lines;
static void begin(const char *format, long a, long b, long c, long d)
{
	char line[256];
	log_lines = 1;
	FILE *file = open_in("log", "a+");
	rewind(file);
	while (fgets(line, sizeof line, file))
		log_lines++;
	fprintf(file, format, a, b, c, d);
	fputc('\n', file);
	fclose(file);
	maybe_killed("before", log_lines);
	load();
}
static void done(void)
{
	save();
	maybe_killed("after", log_lines);
}

