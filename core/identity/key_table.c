/* A row is found by 64 bits: of a hash of its id, or of the digest of a plain key. Those who ask can choose ids, but not what stands in the
 * table, so no chain is long. Texts stay where they were read, in one block, from which plain keys are wiped. */
#include "identity/key_table.h"

#include "base/err.h"
#include "base/map.h"
#include "base/rand.h"
#include "identity/key_line.h"

#include <openssl/crypto.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define KEYS_MAX 65536U
#define FILE_BYTES_MAX ((size_t) 16 << 20)

struct row {
    bt_map_entry_t entry;
    bt_identity_t identity;
    uint64_t expires_ms;
    bool is_revoked, is_hashed;
    unsigned char salt[BT_KEY_SALT_BYTES], digest[BT_SHA256_BYTES];
    char name[24]; /* of a plain key, whose own text nobody may see */
};

struct bt_key_table {
    _Atomic unsigned refs;
    char *text; /* of the file */
    size_t size;
    struct row *rows;
    unsigned count, cap, revoked;
    bt_map_t map;
    unsigned char salt[BT_KEY_SALT_BYTES]; /* of plain keys; the process's */
    unsigned char digest[BT_SHA256_BYTES]; /* of the file */
};

struct reader {
    const char *path;
    unsigned line, left_out;
    bool is_shared; /* many write it: a line that is wrong is left out, and plain keys are wrong */
    bt_key_table_t *table;
    char *err;
    size_t err_size;
};

static bt_str_t salt_of(const unsigned char *salt)
{
    return (bt_str_t){(const char *) salt, BT_KEY_SALT_BYTES};
}

static uint64_t first_of(const unsigned char *digest)
{
    uint64_t first;

    memcpy(&first, digest, sizeof first);
    return first;
}

/* The key itself is never part of it. */
static int refuse(const struct reader *r, const char *why)
{
    if (r->left_out != 0)
        return BT_E_CONFIG; /* the first one says it */
    if (r->line != 0)
        return bt_err_refuse(r->err, r->err_size, "%s:%u: %s", r->path, r->line, why);
    return bt_err_refuse(r->err, r->err_size, "%s: %s", r->path, why);
}

/* ---- rows ---- */

static struct row *find_id(const bt_key_table_t *t, bt_str_t id)
{
    const uint64_t hash = bt_str_hash(id);
    bt_list_t *bucket = bt_map_bucket(&t->map, hash), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        struct row *row = bt_container_of(it, struct row, entry.link);
        if (row->is_hashed && row->entry.key == hash && bt_str_eq(row->identity.id, id))
            return row;
    }
    return NULL;
}

static struct row *find_digest(const bt_key_table_t *t, const unsigned char *digest)
{
    bt_list_t *bucket = bt_map_bucket(&t->map, first_of(digest)), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        struct row *row = bt_container_of(it, struct row, entry.link);
        if (!row->is_hashed && bt_sha256_same(row->digest, digest, BT_SHA256_BYTES))
            return row;
    }
    return NULL;
}

static struct row *add_row(bt_key_table_t *t, const bt_key_line_t *line)
{
    struct row *row = &t->rows[t->count++];
    const bt_str_t scopes = line->scopes.n > 0 ? line->scopes : BT_STR(BT_SCOPES_CLIENT);

    row->is_hashed = line->is_hashed;
    row->is_revoked = line->revoked.p != NULL;
    row->expires_ms = line->expires_ms;
    row->identity = (bt_identity_t){.source = BT_IDENTITY_KEY,
                                    .scopes = bt_scopes_read(scopes, NULL),
                                    .sets_tenant = line->sets_tenant,
                                    .tenant = line->tenant,
                                    .scope_names = scopes,
                                    .models = line->models};
    t->revoked += row->is_revoked;
    return row;
}

static void add_hashed(bt_key_table_t *t, const bt_key_line_t *line)
{
    struct row *row = add_row(t, line);

    memcpy(row->salt, line->salt, sizeof row->salt);
    memcpy(row->digest, line->digest, sizeof row->digest);
    row->identity.id = line->name;
    row->identity.owner = bt_identity_owner(BT_STR("key:"), line->name);
    if (row->identity.tenant.n == 0)
        row->identity.tenant = row->identity.id;
    bt_map_put(&t->map, &row->entry, bt_str_hash(line->name));
}

/* Its name is made of its hash, and does not lead back to a key that is long and random. */
static void add_plain(bt_key_table_t *t, const bt_key_line_t *line, const unsigned char *digest)
{
    struct row *row = add_row(t, line);

    memcpy(row->digest, digest, sizeof row->digest);
    row->identity.owner = bt_identity_owner(BT_STR(""), line->name);
    snprintf(row->name, sizeof row->name, "key-%08x", (unsigned) row->identity.owner);
    row->identity.id = bt_str(row->name);
    if (row->identity.tenant.n == 0)
        row->identity.tenant = row->identity.id;
    bt_map_put(&t->map, &row->entry, first_of(digest));
}

static int take_line(struct reader *r, const bt_key_line_t *line)
{
    unsigned char digest[BT_SHA256_BYTES];
    bt_key_table_t *t = r->table;

    if (t->count == KEYS_MAX)
        return refuse(r, "there are more than 65536 keys");
    if (line->is_hashed) {
        if (find_id(t, line->name) != NULL)
            return refuse(r, "a key of this id stands in the file already");
        add_hashed(t, line);
        return 0;
    }
    if (r->is_shared)
        return refuse(r, "no hashed key under its own id; baton key list --store names it");
    bt_sha256_of(salt_of(t->salt), line->name, digest);
    if (find_digest(t, digest) != NULL)
        return refuse(r, "this key stands in the file already: whose is it?");
    add_plain(t, line, digest);
    OPENSSL_cleanse(t->text + (line->name.p - t->text), line->name.n);
    return 0;
}

/* ---- a file ---- */

static int read_text(struct reader *r)
{
    bt_key_table_t *t = r->table;
    FILE *in = fopen(r->path, "re");
    int rc = 0;

    if (in == NULL)
        return refuse(r, strerror(errno));
    t->text = malloc(FILE_BYTES_MAX + 1);
    if (t->text == NULL) {
        fclose(in);
        return BT_E_NOMEM;
    }
    setvbuf(in, NULL, _IONBF, 0); /* a buffer would keep plain keys */
    t->size = fread(t->text, 1, FILE_BYTES_MAX + 1, in);
    if (ferror(in))
        rc = refuse(r, strerror(errno));
    else if (t->size > FILE_BYTES_MAX)
        rc = refuse(r, "a file of keys has at most 16 MiB");
    fclose(in);
    return rc;
}

/* The block was as large as a file may be. Rows do not point to it yet. */
static int fit(bt_key_table_t *t)
{
    char *text = malloc(t->size + 1);

    if (text == NULL)
        return BT_E_NOMEM;
    memcpy(text, t->text, t->size);
    OPENSSL_cleanse(t->text, t->size);
    free(t->text);
    t->text = text;
    t->cap = (unsigned) bt_str_lines((bt_str_t){text, t->size}) + 1;
    t->rows = calloc(t->cap < KEYS_MAX ? t->cap : KEYS_MAX, sizeof *t->rows);
    return t->rows != NULL ? 0 : BT_E_NOMEM;
}

static int read_line(struct reader *r, bt_str_t text)
{
    bt_key_line_t line;
    char why[256];
    int rc;

    snprintf(why, sizeof why, "a line has at most %u bytes", BT_KEY_LINE_MAX);
    if (text.n > BT_KEY_LINE_MAX)
        return refuse(r, why);
    rc = bt_key_line_read(text, &line, why, sizeof why);
    if (rc < 0)
        return rc == BT_E_CONFIG ? refuse(r, why) : rc;
    return line.name.n > 0 ? take_line(r, &line) : 0;
}

static int read_lines(struct reader *r)
{
    bt_key_table_t *t = r->table;
    size_t n;
    int rc = 0;

    for (size_t at = 0; at < t->size && rc == 0; at += n + 1) {
        const char *end = memchr(t->text + at, '\n', t->size - at);
        n = end != NULL ? (size_t) (end - t->text) - at : t->size - at;
        r->line++;
        rc = read_line(r, (bt_str_t){t->text + at, n});
        if (rc == BT_E_CONFIG && r->is_shared) {
            r->left_out++;
            rc = 0;
        }
    }
    if (rc == 0)
        r->line = 0;
    if (rc == 0 && t->count == 0)
        rc = refuse(r, "no key in it: every client would be refused");
    return rc;
}

static int read_table(struct reader *r)
{
    bt_key_table_t *t = r->table;
    int rc = bt_map_init(&t->map, 64);

    if (rc == 0 && t->text == NULL)
        rc = read_text(r);
    if (rc == 0) {
        bt_sha256_of((bt_str_t){t->text, t->size}, BT_STR(""), t->digest);
        rc = fit(t);
    }
    bt_rand_secure(t->salt, sizeof t->salt);
    return rc == 0 ? read_lines(r) : rc;
}

/* Takes the table. */
static int finish(struct reader *r, bt_key_table_t **table_p)
{
    int rc;

    if (r->table == NULL)
        return BT_E_NOMEM;
    atomic_init(&r->table->refs, 1);
    rc = read_table(r);
    if (rc < 0)
        bt_key_table_unref(r->table);
    else
        *table_p = r->table;
    return rc;
}

int bt_key_table_read(const char *path, bt_key_table_t **table_p, char *err, size_t err_size)
{
    struct reader r = {.path = path, .err = err, .err_size = err_size};

    r.table = calloc(1, sizeof *r.table);
    return finish(&r, table_p);
}

int bt_key_table_of(bt_str_t text, unsigned *left_out_p, bt_key_table_t **table_p, char *why,
                    size_t why_size)
{
    struct reader r = {.path = "row", .is_shared = true, .err = why, .err_size = why_size};
    int rc;

    r.table = calloc(1, sizeof *r.table);
    if (r.table != NULL && (r.table->text = malloc(text.n + 1)) != NULL) {
        memcpy(r.table->text, text.p, text.n);
        r.table->size = text.n;
    } else {
        free(r.table);
        return BT_E_NOMEM;
    }
    rc = finish(&r, table_p);
    *left_out_p = r.left_out;
    return rc;
}

/* ---- life ---- */

bt_key_table_t *bt_key_table_ref(bt_key_table_t *table)
{
    atomic_fetch_add_explicit(&table->refs, 1, memory_order_relaxed);
    return table;
}

void bt_key_table_unref(bt_key_table_t *table)
{
    if (table == NULL || atomic_fetch_sub_explicit(&table->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (table->text != NULL)
        OPENSSL_cleanse(table->text, table->size);
    free(table->text);
    free(table->rows);
    free(table->map.buckets);
    free(table);
}

/* ---- who is it? ---- */

enum bt_auth_refusal bt_key_table_find(const bt_key_table_t *table, bt_str_t key, uint64_t wall_ms,
                                       bt_identity_t *identity)
{
    unsigned char digest[BT_SHA256_BYTES];
    const struct row *row = NULL;
    bt_str_t id, secret;

    if (key.n == 0)
        return BT_AUTH_MISSING;
    if (bt_key_split(key, &id, &secret) && (row = find_id(table, id)) != NULL) {
        bt_sha256_of(salt_of(row->salt), secret, digest);
        if (!bt_sha256_same(row->digest, digest, sizeof digest))
            return BT_AUTH_KEY_WRONG;
    } else {
        bt_sha256_of(salt_of(table->salt), key, digest);
        row = find_digest(table, digest);
    }
    if (row == NULL)
        return BT_AUTH_KEY_WRONG;
    if (row->is_revoked)
        return BT_AUTH_KEY_REVOKED;
    if (wall_ms >= row->expires_ms)
        return BT_AUTH_KEY_EXPIRED;
    *identity = row->identity;
    return BT_AUTH_OK;
}

unsigned bt_key_table_count(const bt_key_table_t *table)
{
    return table->count - table->revoked;
}

void bt_key_table_describe(const bt_key_table_t *table, bt_text_t *out)
{
    for (unsigned i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        bt_text_printf(out, "%llx %.*s %.*s %.*s %llu %d %d\n",
                       (unsigned long long) row->identity.owner, BT_STR_ARG(row->identity.tenant),
                       BT_STR_ARG(row->identity.scope_names), BT_STR_ARG(row->identity.models),
                       (unsigned long long) row->expires_ms, row->is_revoked,
                       row->identity.sets_tenant);
    }
}

bool bt_key_table_same(const bt_key_table_t *a, const bt_key_table_t *b)
{
    return bt_sha256_same(a->digest, b->digest, sizeof a->digest);
}
