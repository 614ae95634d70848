/* Copies many pieces of memory past the caches. Called by holdfast.flash.copying through ctypes,
 * so the interpreter's lock is released meanwhile.
 *
 * Streaming stores do not read the destination's lines first, and taking turns over four pages
 * keeps more of the memory's banks busy. Each thread ends with a fence: streaming stores are not
 * ordered by the release store of a slot's state that follows.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PAGE 4096u
#define LINE 64u
#define MOST_THREADS 16

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
typedef void (*line_copier)(char *, const char *, size_t);

#define FOUR_PAGES(NAME, TARGET, COPY_LINE)                                                        \
    __attribute__((target(TARGET))) static void NAME(char *to, const char *from, size_t blocks) {  \
        for (; blocks; blocks--, to += 4 * PAGE, from += 4 * PAGE)                                 \
            for (size_t at = 0; at < PAGE; at += LINE)                                             \
                for (size_t page = 0; page < 4; page++) {                                          \
                    char *t = to + page * PAGE + at;                                               \
                    const char *f = from + page * PAGE + at;                                       \
                    COPY_LINE                                                                      \
                }                                                                                  \
    }

FOUR_PAGES(copy_avx512, "avx512f", {
    _mm512_stream_si512((__m512i *)t, _mm512_loadu_si512((const void *)f));
})
FOUR_PAGES(copy_avx2, "avx2", {
    __m256i a = _mm256_loadu_si256((const __m256i *)f);
    __m256i b = _mm256_loadu_si256((const __m256i *)(f + 32));
    _mm256_stream_si256((__m256i *)t, a);
    _mm256_stream_si256((__m256i *)(t + 32), b);
})
FOUR_PAGES(copy_sse2, "sse2", {
    for (int i = 0; i < 64; i += 16)
        _mm_stream_si128((__m128i *)(t + i), _mm_loadu_si128((const __m128i *)(f + i)));
})

static line_copier choose_copier(void) {
    if (__builtin_cpu_supports("avx512f"))
        return copy_avx512;
    return __builtin_cpu_supports("avx2") ? copy_avx2 : copy_sse2;
}
#endif

static void copy_bytes(char *to, const char *from, uint64_t bytes) {
#if defined(__x86_64__)
    uint64_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    if (bytes >= 4 * PAGE + head) {
        memcpy(to, from, head);
        uint64_t blocks = (bytes - head) / (4 * PAGE);
        choose_copier()(to + head, from + head, blocks);
        head += blocks * 4 * PAGE;
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
