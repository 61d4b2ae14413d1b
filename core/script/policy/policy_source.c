/* A file is read whole before anything is decided about it; a file that changes while it is read gives one bad generation at
 * the most, and the change itself brings the next look. */
#include "script/policy/policy_source.h"

#include "base/err.h"
#include "script/vm/embedded.h"
#include "script/vm/vm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define EMBEDDED_PREFIX "policies/"
#define EMBEDDED_MAX 32
#define PATH_BYTES 512

const char *bt_source_kind_name(enum bt_source_kind kind)
{
    static const char *const names[] = {"shipped", "dir", "file", "admin", "fleet"};
    return names[kind];
}

/* ---- life ---- */

int bt_policy_source_new(bt_policy_source_t **source_p, enum bt_source_kind kind, const char *name,
                         const char *path, bt_str_t code)
{
    bt_policy_source_t *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return BT_E_NOMEM;
    atomic_init(&s->refs, 1);
    s->kind = kind;
    s->name = bt_str_dup(bt_str(name));
    s->path = bt_str_dup(bt_str(path));
    s->code = bt_str_dup(code);
    s->size = code.n;
    if (s->name == NULL || s->path == NULL || s->code == NULL) {
        bt_policy_source_unref(s);
        return BT_E_NOMEM;
    }
    *source_p = s;
    return 0;
}

bt_policy_source_t *bt_policy_source_ref(bt_policy_source_t *source)
{
    if (source != NULL)
        atomic_fetch_add_explicit(&source->refs, 1, memory_order_relaxed);
    return source;
}

void bt_policy_source_unref(bt_policy_source_t *source)
{
    if (source == NULL || atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) > 1)
        return;
    free(source->name);
    free(source->path);
    free(source->code);
    free(source);
}

bool bt_policy_source_same(const bt_policy_source_t *a, const bt_policy_source_t *b)
{
    if (a == b || a == NULL || b == NULL)
        return a == b;
    return a->kind == b->kind && a->size == b->size && strcmp(a->path, b->path) == 0 &&
           memcmp(a->code, b->code, a->size) == 0;
}

/* ---- names ---- */

static const char *embedded_names[EMBEDDED_MAX + 1];
static char embedded_text[EMBEDDED_MAX][64];

static void list_embedded(void)
{
    unsigned count = 0;

    for (const struct bt_embedded *file = bt_embedded_files;
         file->path != NULL && count < EMBEDDED_MAX; file++) {
        size_t n = strlen(file->path), prefix = strlen(EMBEDDED_PREFIX);

        if (strncmp(file->path, EMBEDDED_PREFIX, prefix) != 0 || n <= prefix + 4)
            continue;
        snprintf(embedded_text[count], sizeof(embedded_text[0]), "%.*s", (int) (n - prefix - 4),
                 file->path + prefix);
        embedded_names[count] = embedded_text[count];
        count++;
    }
}

const char *const *bt_policy_embedded_names(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, list_embedded);
    return embedded_names;
}

/* " (did you mean 'a'?); known policies: a, b" */
static void add_known(char *err, size_t err_size, bt_str_t wanted)
{
    const char *const *names = bt_policy_embedded_names(), *nearest = bt_vm_nearest(names, wanted);
    size_t at = strlen(err);

    if (nearest != NULL && at < err_size)
        at += (size_t) snprintf(err + at, err_size - at, " (did you mean '%s'?)", nearest);
    for (unsigned i = 0; names[i] != NULL && at < err_size; i++)
        at += (size_t) snprintf(err + at, err_size - at, "%s%s",
                                i == 0 ? "; known policies: " : ", ", names[i]);
}

bt_str_t bt_policy_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    bt_str_t name = bt_str(slash != NULL ? slash + 1 : path);

    if (name.n > 4 && strcmp(name.p + name.n - 4, ".lua") == 0)
        name.n -= 4;
    return name;
}

bool bt_policy_is_path(const char *name)
{
    return strchr(name, '/') != NULL || bt_str(name).n != bt_policy_base_name(name).n;
}

/* ---- reading ---- */

static int open_file(bt_policy_source_t **source_p, enum bt_source_kind kind, const char *name,
                     const char *path, char *err, size_t err_size)
{
    char *text;
    size_t size;
    int rc = bt_vm_read_file(path, &text, &size, err, err_size);

    if (rc != 0) {
        add_known(err, err_size, bt_policy_base_name(path));
        return rc;
    }
    rc = bt_policy_source_new(source_p, kind, name, path, (bt_str_t){text, size});
    free(text);
    if (rc != 0)
        snprintf(err, err_size, "%s: out of memory", path);
    return rc;
}

/* A file in policy_dir takes the place of a shipped one of the same name. */
int bt_policy_source_open(bt_policy_source_t **source_p, const char *name, const char *policy_dir,
                          char *err, size_t err_size)
{
    const struct bt_embedded *file;
    char path[PATH_BYTES];
    int rc;

    if (bt_policy_is_path(name))
        return open_file(source_p, BT_SOURCE_FILE, name, name, err, err_size);
    if (policy_dir != NULL) {
        snprintf(path, sizeof(path), "%s/%s.lua", policy_dir, name);
        if (access(path, F_OK) == 0)
            return open_file(source_p, BT_SOURCE_DIR, name, path, err, err_size);
    }
    snprintf(path, sizeof(path), EMBEDDED_PREFIX "%s.lua", name);
    file = bt_vm_embedded(path);
    if (file == NULL) {
        snprintf(err, err_size, "no policy '%s'", name);
        add_known(err, err_size, bt_str(name));
        return BT_E_CONFIG;
    }
    rc = bt_policy_source_new(source_p, BT_SOURCE_SHIPPED, name, path,
                              (bt_str_t){file->data, file->size});
    if (rc != 0)
        snprintf(err, err_size, "%s: out of memory", path);
    return rc;
}
