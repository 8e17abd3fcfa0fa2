/*
 * A part of front.c: the plan of exec that the launcher has kept; gpurun/engine/caller/kept_plan.py has its form and says what
 * each part is.
 */

/* PLAN_NUMBERS(X) is X(FROM_FILE) X(NAMESPACES) ..., PLAN_TEXTS(X) the like: from kept_plan.py, by the build. */
#define PLAN_NUMBER(name) PLAN_##name,
#define PLAN_TEXT(name) TEXT_##name,
enum plan_number { PLAN_NUMBERS(PLAN_NUMBER) NUMBERS };
enum plan_text { PLAN_TEXTS(PLAN_TEXT) TEXTS };

#define NOT_ONE UINT64_MAX /* which variable HOME is, where it is not to be looked up */

struct plan {
	uint64_t numbers[NUMBERS], sizes[TEXTS];
	char *texts[TEXTS];
};

/* What the setter is sent: this, the arguments, the plan. */
struct job {
	uint64_t has_root, root_device, root_inode; /* of the root directory that it is to come to, if that is known */
	uint64_t words_size, plan_size;
};

static _Alignas(8) char plan_text[PLAN_BYTES];
static char words_text[PLAN_BYTES]; /* the arguments, each ended by a zero byte */

/* Whether the text is a whole plan, which *plan then is. */
static bool read_plan(char *text, size_t size, struct plan *plan)
{
	uint64_t at = sizeof plan->numbers + sizeof plan->sizes;

	if (size < at)
		return false;
	memcpy(plan->numbers, text, sizeof plan->numbers);
	memcpy(plan->sizes, text + sizeof plan->numbers, sizeof plan->sizes);
	for (int i = 0; i < TEXTS; i++) {
		if (plan->sizes[i] >= size - at || text[at + plan->sizes[i]] != '\0')
			return false;
		plan->texts[i] = text + at;
		at += (plan->sizes[i] / 8 + 1) * 8;
		if (at > size)
			return false;
	}
	return at == size;
}

/* The strings, each ended by a zero byte, as a vector; -1 for more than it has room for.  Returns how many there are. */
static int split(char *text, size_t size, char **vector, int room)
{
	int count = 0;

	for (char *at = text; at < text + size; at += strlen(at) + 1) {
		if (count == room - 1)
			return -1;
		vector[count++] = at;
	}
	vector[count] = NULL;
	return count;
}

/* Send or read all of it; false where the other side has gone. */
static bool send_all(int fd, const void *data, size_t size)
{
	for (size_t at = 0; at < size;) {
		ssize_t sent = send(fd, (const char *)data + at, size - at, MSG_NOSIGNAL);
		if (sent < 0 && errno != EINTR)
			return false;
		at += sent > 0 ? (size_t)sent : 0;
	}
	return true;
}

static bool receive_all(int fd, void *into, size_t size)
{
	for (size_t at = 0; at < size;) {
		ssize_t got = read(fd, (char *)into + at, size - at);
		if (got == 0 || (got < 0 && errno != EINTR))
			return false;
		at += got > 0 ? (size_t)got : 0;
	}
	return true;
}
