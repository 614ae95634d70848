/* Copies many pieces of memory past the caches. Called by holdfast.flash.trainer.copier through ctypes,
 * so the interpreter's lock is released meanwhile.
 *
 * Streaming stores do not read the destination's lines first. Whether it is quicker to go line after
 * line or to take turns over four pages depends on the machine (in CPU time 0.63 and 0.74 of a plain
 * copy on one, 0.84 and 0.50 on another): the first chunks try both, and the quicker one stays.
 * Each thread ends with a fence: streaming stores are not ordered by the release store of a slot's
 * state that follows.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PAGE 4096u
#define LINE 64u
#define MOST_THREADS 16
#define CHUNK (512u * PAGE)
#define TRIALS 24u /* chunks, half of them each way */

struct piece {
    uint64_t to;
    uint64_t from;
    uint64_t bytes;
};

struct share {
    const struct piece *pieces;
    uint64_t count;
    uint64_t begin; /* of all bytes, in the order of the pieces */
    uint64_t end;
};

static void fence(void) {
#if defined(__x86_64__)
    _mm_sfence();
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

#if defined(__x86_64__)
typedef void (*walker)(char *, const char *, size_t);

/* Copies whole lines: `bytes` is a multiple of PAGES pages, and `to` begins a line. */
#define WALK(NAME, TARGET, PAGES, COPY_LINE)                                                       \
    __attribute__((target(TARGET))) static void NAME(char *to, const char *from, size_t bytes) {   \
        for (; bytes; bytes -= PAGES * PAGE, to += PAGES * PAGE, from += PAGES * PAGE)             \
            for (size_t at = 0; at < PAGE; at += LINE)                                             \
                for (size_t page = 0; page < PAGES; page++) {                                      \
                    char *t = to + page * PAGE + at;                                               \
                    const char *f = from + page * PAGE + at;                                       \
                    COPY_LINE                                                                      \
                }                                                                                  \
    }
#define BOTH_WALKS(NAME, TARGET, COPY_LINE)                                                        \
    WALK(NAME##_lines, TARGET, 1, COPY_LINE)                                                       \
    WALK(NAME##_pages, TARGET, 4, COPY_LINE)

BOTH_WALKS(avx512, "avx512f", {
    _mm512_stream_si512((__m512i *)t, _mm512_loadu_si512((const void *)f));
})
BOTH_WALKS(avx2, "avx2", {
    __m256i a = _mm256_loadu_si256((const __m256i *)f);
    __m256i b = _mm256_loadu_si256((const __m256i *)(f + 32));
    _mm256_stream_si256((__m256i *)t, a);
    _mm256_stream_si256((__m256i *)(t + 32), b);
})
BOTH_WALKS(sse2, "sse2", {
    for (int i = 0; i < 64; i += 16)
        _mm_stream_si128((__m128i *)(t + i), _mm_loadu_si128((const __m128i *)(f + i)));
})

static walker walkers(int pages) {
    if (__builtin_cpu_supports("avx512f"))
        return pages ? avx512_pages : avx512_lines;
    if (__builtin_cpu_supports("avx2"))
        return pages ? avx2_pages : avx2_lines;
    return pages ? sse2_pages : sse2_lines;
}

static atomic_uint tried;
static _Atomic uint64_t least[2] = {UINT64_MAX, UINT64_MAX}; /* ns of CPU for a chunk */

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void try_chunk(char *to, const char *from, unsigned trial) {
    int pages = trial % 2;
    uint64_t begun = cpu_ns();
    walkers(pages)(to, from, CHUNK);
    uint64_t took = cpu_ns() - begun, known = atomic_load(&least[pages]);
    while (took < known && !atomic_compare_exchange_weak(&least[pages], &known, took))
        ;
}

/* Returns how much it has copied; less than four pages are left. */
static uint64_t stream(char *to, const char *from, uint64_t bytes) {
    uint64_t done = 0;
    while (bytes - done >= CHUNK && atomic_load(&tried) < TRIALS) {
        try_chunk(to + done, from + done, atomic_fetch_add(&tried, 1));
        done += CHUNK;
    }
    uint64_t rest = (bytes - done) / (4 * PAGE) * (4 * PAGE);
    walkers(atomic_load(&least[1]) < atomic_load(&least[0]))(to + done, from + done, rest);
    return done + rest;
}
#endif

static void copy_bytes(char *to, const char *from, uint64_t bytes) {
#if defined(__x86_64__)
    uint64_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    if (bytes >= 4 * PAGE + head) {
        memcpy(to, from, head);
        head += stream(to + head, from + head, bytes - head);
        to += head, from += head, bytes -= head;
    }
#endif
    memcpy(to, from, bytes);
}

static void *copy_share(void *argument) {
    const struct share *share = argument;
    uint64_t at = 0;
    for (uint64_t i = 0; i < share->count && at < share->end; i++) {
        const struct piece *piece = &share->pieces[i];
        uint64_t first = at > share->begin ? at : share->begin;
        uint64_t last = at + piece->bytes < share->end ? at + piece->bytes : share->end;
        if (first < last)
            copy_bytes((char *)(uintptr_t)piece->to + (first - at),
                       (const char *)(uintptr_t)piece->from + (first - at), last - first);
        at += piece->bytes;
    }
    fence();
    return NULL;
}

/* Returns the number of threads that took part. */
int holdfast_copy(const struct piece *pieces, uint64_t count, int threads) {
    struct share shares[MOST_THREADS];
    pthread_t others[MOST_THREADS];
    uint64_t total = 0, begin = 0;
    int started = 0;
    for (uint64_t i = 0; i < count; i++)
        total += pieces[i].bytes;
    if (threads < 1 || total < 1u << 20)
        threads = 1;
    if (threads > MOST_THREADS)
        threads = MOST_THREADS;
    for (int i = 0; i < threads; i++) {
        uint64_t end = i + 1 == threads ? total : total / threads * (i + 1) / PAGE * PAGE;
        shares[i] = (struct share){pieces, count, begin, end};
        begin = end;
    }
    while (started + 1 < threads &&
           pthread_create(&others[started], NULL, copy_share, &shares[started + 1]) == 0)
        started++;
    copy_share(&shares[0]);
    for (int i = started + 1; i < threads; i++) /* no thread could be had: do its share here */
        copy_share(&shares[i]);
    for (int i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    return started + 1;
}
