/*
 * A part of front.c: BLAKE2b (RFC 7693), 32 bytes without a key: what our own file in a rootfs is recognised by.
 */

struct blake2b {
	uint64_t h[8], count;
	unsigned char block[128];
	size_t used;
};

static const uint64_t blake2b_iv[8] = {
	0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
	0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static uint64_t rotated(uint64_t word, int bits)
{
	return word >> bits | word << (64 - bits);
}

static void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
	v[a] += v[b] + x;
	v[d] = rotated(v[d] ^ v[a], 32);
	v[c] += v[d];
	v[b] = rotated(v[b] ^ v[c], 24);
	v[a] += v[b] + y;
	v[d] = rotated(v[d] ^ v[a], 16);
	v[c] += v[d];
	v[b] = rotated(v[b] ^ v[c], 63);
}

static void compress(struct blake2b *b, bool last)
{
	static const unsigned char sigma[10][16] = {
		{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }, { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
		{ 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 }, { 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
		{ 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 }, { 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
		{ 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 }, { 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
		{ 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 }, { 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
	};
	uint64_t v[16], m[16] = { 0 };

	for (int i = 0; i < 128; i++)
		m[i / 8] |= (uint64_t)b->block[i] << (i % 8 * 8);
	for (int i = 0; i < 8; i++) {
		v[i] = b->h[i];
		v[i + 8] = blake2b_iv[i];
	}
	v[12] ^= b->count; /* of bytes: no file here has 2^64 */
	if (last)
		v[14] = ~v[14];
	for (int round = 0; round < 12; round++) {
		const unsigned char *s = sigma[round % 10];
		for (int i = 0; i < 4; i++)
			mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
		for (int i = 0; i < 4; i++)
			mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
	}
	for (int i = 0; i < 8; i++)
		b->h[i] ^= v[i] ^ v[i + 8];
}

static void blake2b_begin(struct blake2b *b)
{
	*b = (struct blake2b){ .used = 0 };
	memcpy(b->h, blake2b_iv, sizeof b->h);
	b->h[0] ^= 0x01010000 | DIGEST_BYTES;
}

static void blake2b_add(struct blake2b *b, const unsigned char *data, size_t bytes)
{
	while (bytes > 0) {
		if (b->used == sizeof b->block) { /* another block follows, so this one is not the last */
			b->count += b->used;
			compress(b, false);
			b->used = 0;
		}
		size_t part = sizeof b->block - b->used < bytes ? sizeof b->block - b->used : bytes;
		memcpy(b->block + b->used, data, part);
		b->used += part;
		data += part;
		bytes -= part;
	}
}

static void blake2b_end(struct blake2b *b, char hex[2 * DIGEST_BYTES + 1])
{
	b->count += b->used;
	memset(b->block + b->used, 0, sizeof b->block - b->used);
	compress(b, true);
	for (int i = 0; i < DIGEST_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", (unsigned)(b->h[i / 8] >> (i % 8 * 8)) & 0xff);
}
