/*
 * What the compiled front reads from files, fed with damaged ones in one process: each access to memory is checked by the
 * sanitizers that it is built with.  What front.c would leave to the launcher ends the case.
 *
 *     front_fuzz STATE WORD SEED SECONDS
 *
 * prints how many cases there were of each, and how many were understood.  FRONT is front.c, its defer_to_python replaced by
 * one that comes back here (test_front_fuzz.py).
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
	"//", "a/", "/a", "rootfs", "hooks", "\"",
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

int main(int argc, char **argv)
{
	static struct input good[2], in;
	static void (*const readers[2])(const struct input *) = { read_state, read_word };
	static volatile size_t cases[2], understood[2];
	char *own[] = { (char *)(uintptr_t)"gpurun", NULL };

	if (argc != 5)
		return 2;
	arguments = own;
	argument_count = 1;
	for (int i = 0; i < 2; i++)
		load_input(&good[i], argv[i + 1]);
	seed = strtoull(argv[3], NULL, 10) | 1;
	int report = dup(1);
	if (!freopen("/dev/null", "w", stdout) || report < 0)
		return 2;
	dup2(open("/dev/null", O_WRONLY), 1);

	time_t end = time(NULL) + (time_t)strtoull(argv[4], NULL, 10);
	for (volatile size_t number = 0; number % BATCH || time(NULL) < end; number++) {
		volatile int kind = (int)below(2);
		if (number % BATCH == 0)
			alarm(SECONDS_A_BATCH); /* one that does not come to its end is ended by SIGALRM */
		in = good[kind];
		damage(&in);
		cases[kind]++;
		if (setjmp(next_case) == 0) {
			readers[kind](&in);
			understood[kind]++;
		}
	}
	dprintf(report, "states %zu %zu words %zu %zu\n", cases[0], understood[0], cases[1], understood[1]);
	return 0;
}
