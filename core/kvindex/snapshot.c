/* The file, in this machine's byte order:
 *
 *   "BTKVSNP1"  mark of the chain   for each part: header, endpoint, names   header of zeros   count of adapters, their hashes   checksum
 *
 * A mark of the chain is what bt_kv_chain makes of known tokens: where another program would make something else of them, or has another
 * byte order, blocks would never be found. The checksum is of all before it, so whatever passes it was written here; what it says is checked all the
 * same. The file is read, not mapped: one that is cut meanwhile would end the process. */
#include "kvindex/snapshot.h"

#include "base/err.h"
#include "kvindex/chain.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "BTKVSNP1"
#define MAGIC_BYTES (sizeof(MAGIC) - 1)
#define PATH_MAX_BYTES 4096
#define ENDPOINT_MAX 4096u
#define TIERS_BITS 3

typedef struct part_head {
    uint64_t endpoint_bytes, number, hash, block_tokens, names;
    int64_t group;
} part_head_t;

typedef struct name_entry {
    uint64_t engine, own;
    uint64_t
        more_and_tiers; /* further copies on the device; tiers in the lowest bits: 0 = it is known as a parent alone */
} name_entry_t;

struct bt_kv_snapshot_writer {
    FILE *file;
    XXH3_state_t *sum;
    unsigned parts;
    char path[PATH_MAX_BYTES], beside[PATH_MAX_BYTES];
};

struct bt_kv_snapshot {
    char *bytes;
    size_t count; /* without the checksum */
    size_t first; /* of the parts */
    size_t
        at; /* where the last search ended: parts are asked for in the order in which they were put */
    size_t adapters; /* behind the parts */
};

static uint64_t chain_mark(void)
{
    const uint32_t tokens[] = {1, 2, 3, 0x01020304};

    return bt_kv_mix(bt_kv_chain(bt_kv_root(BT_STR("adapter"), BT_STR("salt")), tokens, 4), 5);
}

/* ---- writing ---- */

static void put(bt_kv_snapshot_writer_t *w, const void *bytes, size_t count)
{
    (void) XXH3_64bits_update(w->sum, bytes, count);
    (void) fwrite(bytes, 1, count, w->file);
}

static FILE *create(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (fd >= 0 && file == NULL)
        close(fd);
    return file;
}

int bt_kv_snapshot_begin(bt_kv_snapshot_writer_t **writer_p, const char *path)
{
    bt_kv_snapshot_writer_t *w = calloc(1, sizeof(*w));
    const uint64_t mark = chain_mark();

    if (w == NULL)
        return BT_E_NOMEM;
    snprintf(w->path, sizeof(w->path), "%s", path);
    if (snprintf(w->beside, sizeof(w->beside), "%s.%ld", path, (long) getpid()) >=
        (int) sizeof(w->beside)) {
        free(w);
        return -ENAMETOOLONG;
    }
    w->sum = XXH3_createState();
    w->file = w->sum != NULL ? create(w->beside) : NULL;
    if (w->file == NULL) {
        const int rc = w->sum != NULL ? -errno : BT_E_NOMEM;
        (void) XXH3_freeState(w->sum);
        free(w);
        return rc;
    }
    (void) XXH3_64bits_reset_withSeed(w->sum, BT_KV_HASH_SEED);
    put(w, MAGIC, MAGIC_BYTES);
    put(w, &mark, sizeof(mark));
    *writer_p = w;
    return 0;
}

static void put_name(void *user, uint64_t engine, uint64_t own, unsigned tiers, uint64_t more)
{
    put(user, &(name_entry_t){engine, own, more << TIERS_BITS | tiers}, sizeof(name_entry_t));
}

void bt_kv_snapshot_put(bt_kv_snapshot_writer_t *w, const bt_kv_index_t *index, uint32_t part,
                        const char *endpoint, bt_kv_place_t place)
{
    const part_head_t head = {.endpoint_bytes = strlen(endpoint),
                              .number = place.number,
                              .hash = place.hash,
                              .block_tokens = bt_kv_part_block_tokens(index, part),
                              .names = bt_kv_part_held(index, part),
                              .group = bt_kv_part_group(index, part)};

    if (head.endpoint_bytes == 0 || head.endpoint_bytes > ENDPOINT_MAX)
        return;
    put(w, &head, sizeof(head));
    put(w, endpoint, head.endpoint_bytes);
    bt_kv_part_each(index, part, put_name, w);
    w->parts++;
}

static void free_writer(bt_kv_snapshot_writer_t *w)
{
    (void) XXH3_freeState(w->sum);
    free(w);
}

void bt_kv_snapshot_abort(bt_kv_snapshot_writer_t *w)
{
    if (w == NULL)
        return;
    (void) fclose(w->file);
    (void) unlink(w->beside);
    free_writer(w);
}

int bt_kv_snapshot_commit(bt_kv_snapshot_writer_t *w, const bt_kv_index_t *index)
{
    uint64_t adapters[BT_KV_LORAS_MAX];
    const uint64_t count = bt_kv_index_loras(index, adapters);
    int rc = 0;

    if (w->parts == 0) {
        bt_kv_snapshot_abort(w);
        return 0;
    }
    put(w, &(part_head_t){0}, sizeof(part_head_t));
    put(w, &count, sizeof(count));
    put(w, adapters, count * sizeof(adapters[0]));
    const uint64_t sum = XXH3_64bits_digest(w->sum);
    (void) fwrite(&sum, 1, sizeof(sum), w->file);
    errno = 0;
    const bool is_bad = ferror(w->file) != 0;
    if (fclose(w->file) != 0 || is_bad || rename(w->beside, w->path) != 0) {
        rc = errno != 0 ? -errno : -EIO;
        (void) unlink(w->beside);
    }
    free_writer(w);
    return rc;
}

/* ---- reading ---- */

static int read_all(int fd, bt_kv_snapshot_t *s)
{
    char magic[MAGIC_BYTES];
    struct stat st;

    if (fstat(fd, &st) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || pread(fd, magic, sizeof(magic), 0) != sizeof(magic) ||
        memcmp(magic, MAGIC, MAGIC_BYTES - 1) != 0)
        return BT_E_INVAL; /* nobody knows how large it is */
    const size_t size = (size_t) st.st_size;
    s->bytes = malloc(size);
    if (s->bytes == NULL)
        return BT_E_NOMEM;
    while (s->count < size) {
        const ssize_t n = read(fd, s->bytes + s->count, size - s->count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        s->count += (size_t) n;
    }
    return 0;
}

static bool take(const bt_kv_snapshot_t *s, size_t *at, void *out, size_t bytes)
{
    if (s->count - *at < bytes)
        return false;
    memcpy(out, s->bytes + *at, bytes);
    *at += bytes;
    return true;
}

/* A part's header, and the place behind the part. False: it does not end within the file. */
static bool take_part(const bt_kv_snapshot_t *s, size_t *at, part_head_t *head)
{
    if (!take(s, at, head, sizeof(*head)) || head->endpoint_bytes > ENDPOINT_MAX ||
        head->endpoint_bytes > s->count - *at)
        return false;
    *at += head->endpoint_bytes;
    if (head->names > (s->count - *at) / sizeof(name_entry_t))
        return false;
    *at += head->names * sizeof(name_entry_t);
    return true;
}

static const char *whats_wrong(bt_kv_snapshot_t *s)
{
    part_head_t head = {.endpoint_bytes = 1};
    uint64_t mark, sum, count;
    char magic[MAGIC_BYTES];
    size_t at = 0;

    if (!take(s, &at, magic, sizeof(magic)) || memcmp(magic, MAGIC, sizeof(magic)) != 0 ||
        !take(s, &at, &mark, sizeof(mark)) || mark != chain_mark())
        return "another version or another kind of machine has written it";
    if (s->count - at < sizeof(sum))
        return "it is cut";
    s->count -= sizeof(sum);
    memcpy(&sum, s->bytes + s->count, sizeof(sum));
    if (bt_kv_hash((bt_str_t){s->bytes, s->count}) != sum)
        return "it is cut or damaged: its checksum does not fit";
    s->first = s->at = at;
    while (head.endpoint_bytes != 0)
        if (!take_part(s, &at, &head))
            return "a part of it does not end";
    s->adapters = at;
    if (!take(s, &at, &count, sizeof(count)) || count > BT_KV_LORAS_MAX ||
        s->count - at != count * sizeof(count))
        return "its end is not where it should be";
    return NULL;
}

int bt_kv_snapshot_read(bt_kv_snapshot_t **snapshot_p, const char *path, const char **why_p)
{
    /* Whoever opens a pipe would wait for its writer. */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bt_kv_snapshot_t *s = fd >= 0 ? calloc(1, sizeof(*s)) : NULL;
    int rc = fd < 0 ? -errno : s == NULL ? BT_E_NOMEM : read_all(fd, s);

    *why_p = "it is no snapshot of a KV index";
    if (rc == 0 && (*why_p = whats_wrong(s)) != NULL)
        rc = BT_E_INVAL;
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        *snapshot_p = s;
    else
        bt_kv_snapshot_free(s);
    return rc;
}

/* From the last one on, once around. */
static bool find_part(bt_kv_snapshot_t *s, bt_str_t endpoint, part_head_t *head, size_t *names_p)
{
    const size_t begun = s->at;
    bool is_around = false;

    while (!is_around || s->at < begun) {
        const size_t from = s->at;
        if (!take_part(s, &s->at, head))
            return false;
        if (head->endpoint_bytes == 0) {
            s->at = s->first;
            if (is_around)
                return false;
            is_around = true;
            continue;
        }
        *names_p = from + sizeof(*head) + head->endpoint_bytes;
        if (bt_str_eq(endpoint, (bt_str_t){s->bytes + from + sizeof(*head), head->endpoint_bytes}))
            return true;
    }
    return false;
}

static void restore_loras(const bt_kv_snapshot_t *s, bt_kv_index_t *index)
{
    size_t at = s->adapters;
    uint64_t count, hash;

    (void) take(s, &at, &count, sizeof(count));
    while (count-- > 0 && take(s, &at, &hash, sizeof(hash)))
        bt_kv_index_add_lora(index, hash);
}

bool bt_kv_snapshot_restore(bt_kv_snapshot_t *s, bt_kv_index_t *index, uint32_t part,
                            const char *endpoint, bt_kv_place_t *place_p)
{
    part_head_t head;
    name_entry_t e;
    size_t at;

    if (!find_part(s, bt_str(endpoint), &head, &at) ||
        !bt_kv_part_begin_restore(index, part, head.block_tokens, head.group))
        return false;
    restore_loras(s, index);
    for (uint64_t i = 0; i < head.names && take(s, &at, &e, sizeof(e)); i++)
        bt_kv_part_restore(index, part, e.engine, e.own,
                           (unsigned) e.more_and_tiers & ((1U << TIERS_BITS) - 1),
                           e.more_and_tiers >> TIERS_BITS);
    *place_p = (bt_kv_place_t){head.number, head.hash};
    return true;
}

void bt_kv_snapshot_free(bt_kv_snapshot_t *s)
{
    if (s == NULL)
        return;
    free(s->bytes);
    free(s);
}
