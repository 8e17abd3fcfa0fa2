/*
 * What the compiled front reads from files, fed with damaged ones in one process: each access to memory is checked by the
 * sanitizers that it is built with.  What front.c would leave to the launcher ends the case.
 *
 *     front_fuzz STATE WORD PLAN PROCESS PASSWD REQUEST SEED SECONDS DIRECTORY
 *
 * prints how many cases there were of each, and how many were understood; PLAN, which is a whole one, is cut off at each byte
 * first.  REQUEST has a word of exec's command line on each line.  What is read by a path is put into DIRECTORY.  FRONT is front.c,
 * its defer_to_python and need replaced by ones that come back here (test_front_fuzz.py).
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdint.h>

static jmp_buf next_case;

#define main front_main
#include FRONT
#undef main

enum { INPUT_BYTES = 1 << 16, BATCH = 1000, SECONDS_A_BATCH = 60 };

static uint64_t seed;

static size_t below(size_t limit)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return limit ? (size_t)(seed % limit) : 0;
}

static const char *const words[] = {
	"\n", "=", "\n\n", "%s%n", "\xff", "pid=", "id=", "created=\n", "-1", "+5", " 5", "0x10", "999999999999999999",
	"9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999999999999999999", "0", "..", ".", "/",
	"//", "a/", "/a", "rootfs", "hooks", "\"", "[", "]", "\\u0041", "\\u00", "\\ud800", "\\", ":1000:", "1000", "-p", "--process=", "\n--\n",
	"\"hooks\":{\"poststop\":[{\"path\":\"/x\"}]}", "\\", "{}", "[]", ",", ":",
};

struct input {
	char bytes[INPUT_BYTES];
	size_t size;
};

static void replace(struct input *in, size_t at, size_t old, const char *with, size_t bytes)
{
	if (old > in->size - at)
		old = in->size - at;
	if (in->size - old + bytes >= INPUT_BYTES)
		return;
	memmove(in->bytes + at + bytes, in->bytes + at + old, in->size - at - old);
	memcpy(in->bytes + at, with, bytes);
	in->size += bytes - old;
}

static void damage(struct input *in)
{
	char copy[256];

	for (size_t times = 1 + below(5); times; times--) {
		size_t at = below(in->size + 1), some = below(24);
		const char *word = words[below(sizeof words / sizeof *words)];
		char byte = (char)below(256);
		switch (below(7)) {
		case 0: replace(in, at, 1, &byte, 1); break;
		case 1: replace(in, at, 0, &byte, 1); break;
		case 2: replace(in, at, some, "", 0); break;
		case 3: replace(in, at, 0, word, strlen(word)); break;
		case 4: replace(in, at, some, word, strlen(word)); break;
		case 5: in->size = at; break;
		default: /* a part of it once more, elsewhere */
			some = below(sizeof copy);
			if (some > in->size - at)
				some = in->size - at;
			memcpy(copy, in->bytes + at, some);
			replace(in, below(in->size + 1), 0, copy, some);
		}
	}
}

static void load_input(struct input *in, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, in->bytes, INPUT_BYTES / 2);

	if (got < 0) {
		perror(path);
		exit(2);
	}
	in->size = (size_t)got;
	close(fd);
}

/* The input in memory of its size, so that what is behind it is nobody's, and a zero byte at its end. */
static char *alone(const struct input *in)
{
	static char *data;

	free(data);
	data = malloc(in->size + 1);
	memcpy(data, in->bytes, in->size);
	data[in->size] = '\0';
	return data;
}

static void read_state(const struct input *in)
{
	static struct container c;

	memset(&c, 0, sizeof c);
	parse_state(alone(in), in->size, &c);
	do_state(&c);
}

/* A word of the command line: an id, a path that needs nothing resolved, a signal. */
static void read_word(const struct input *in)
{
	const char *word = alone(in);

	is_id(word);
	is_clean(word);
	signal_number(word);
}

/* A plan of exec that was kept, as the front and its setter read it: all that it says is there. */
static void read_kept(const struct input *in)
{
	static char *variables[VARIABLES];
	static volatile uint64_t seen;
	struct plan plan;

	if (!read_plan(alone(in), in->size, &plan))
		longjmp(next_case, 1);
	for (int i = 0; i < TEXTS; i++)
		for (uint64_t at = 0; at <= plan.sizes[i]; at++)
			seen += (unsigned char)plan.texts[i][at];
	split(plan.texts[TEXT_VARIABLES], plan.sizes[TEXT_VARIABLES], variables, VARIABLES);
}

static const char *directory; /* that of process.json and etc/passwd */

static const char *put(const char *name, const struct input *in)
{
	static char path[PATH_BYTES];

	snprintf(path, sizeof path, "%s/%s", directory, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, in->bytes, in->size) != (ssize_t)in->size) {
		perror(path);
		exit(2);
	}
	close(fd);
	return path;
}

/* A process file beside a plan that was made of one with the same text around the arguments. */
static void read_process(const struct input *in)
{
	static char before[] = "{\"args\":", behind[] = "}";
	struct plan plan = { .numbers = { [PLAN_FROM_FILE] = 1 } };
	struct request asked = { .process = put("process.json", in) };

	plan.texts[TEXT_BEFORE] = before;
	plan.sizes[TEXT_BEFORE] = strlen(before);
	plan.texts[TEXT_BEHIND] = behind;
	plan.sizes[TEXT_BEHIND] = strlen(behind);
	words_size = 0;
	read_words(&asked, &plan);
	static char *vector[WORDS];
	split(words_text, words_size, vector, WORDS);
}

/* The container's /etc/passwd. */
static void read_passwd(const struct input *in)
{
	put("etc/passwd", in);
	int root = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC), proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	const char *home = home_variable(root, proc, 1000);

	close(root);
	close(proc);
	if (strncmp(home, "HOME=", 5) != 0 || home[5] == '\0')
		abort();
	if (strcmp(home, "HOME=/") == 0) /* there is none */
		longjmp(next_case, 1);
}

/* exec's words. */
static void read_exec(const struct input *in)
{
	static char *given[INPUT_BYTES + 1];
	char *data = alone(in);
	static volatile size_t seen;

	argument_count = 0;
	for (char *at = data; at < data + in->size; at += strlen(at) + 1) {
		at[strcspn(at, "\n")] = '\0';
		given[argument_count++] = at;
	}
	arguments = given;
	struct request asked = read_request(0);
	seen += strlen(asked.id) + (asked.process ? strlen(asked.process) : 0) + (asked.pid_file ? strlen(asked.pid_file) : 0);
	for (int i = 0; i < asked.count; i++)
		seen += strlen(asked.words[i]);
}

/* How many parts of it, from its first byte on, are taken for a plan. */
static size_t plans_in(const struct input *whole)
{
	static struct input part;
	struct plan plan;
	size_t count = 0;

	for (size_t size = 0; size <= whole->size; size++) {
		part = *whole;
		part.size = size;
		count += read_plan(alone(&part), size, &plan);
	}
	return count;
}

int main(int argc, char **argv)
{
	enum { KINDS = 6 };
	static struct input good[KINDS], in;
	static void (*const readers[KINDS])(const struct input *) = { read_state, read_word, read_kept, read_process, read_passwd, read_exec };
	static const char *const names[KINDS] = { "states", "words", "plans", "processes", "passwd", "exec" };
	static volatile size_t cases[KINDS], understood[KINDS];
	char *own[] = { (char *)(uintptr_t)"gpurun", NULL };

	if (argc != 4 + KINDS)
		return 2;
	arguments = own;
	argument_count = 1;
	for (int i = 0; i < KINDS; i++)
		load_input(&good[i], argv[i + 1]);
	seed = strtoull(argv[KINDS + 1], NULL, 10) | 1;
	directory = argv[KINDS + 3];
	int report = dup(1);
	if (!freopen("/dev/null", "w", stdout) || report < 0)
		return 2;
	dup2(open("/dev/null", O_WRONLY), 1);
	unsigned opened = (unsigned)dup(1) + 1;

	size_t plans = plans_in(&good[2]);
	time_t end = time(NULL) + (time_t)strtoull(argv[KINDS + 2], NULL, 10);
	for (volatile size_t number = 0; number % BATCH || time(NULL) < end; number++) {
		volatile int kind = (int)below(KINDS);
		if (number % BATCH == 0)
			alarm(SECONDS_A_BATCH); /* one that does not come to its end is ended by SIGALRM */
		in = good[kind];
		damage(&in);
		cases[kind]++;
		if (setjmp(next_case) == 0) {
			readers[kind](&in);
			understood[kind]++;
		}
		syscall(SYS_close_range, opened, ~0U, 0); /* what a case that has come back here has left open */
	}
	for (int i = 0; i < KINDS; i++)
		dprintf(report, "%s %zu %zu ", names[i], cases[i], understood[i]);
	dprintf(report, "whole %zu\n", plans);
	return 0;
}
