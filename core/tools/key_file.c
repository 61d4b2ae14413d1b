#include "tools/key.h"

#include "base/err.h"
#include "identity/key_table.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES sizeof(((bt_key_file_t *) 0)->resolved)

static int fail(const char *path, const char *what)
{
    return bt_tool_error(BT_TOOL_FAILED, "key: ", "%s: %s: %s", path, what, strerror(errno));
}

/* A folder has no content that the lock could be in the way of, and nothing is left behind. */
static int take_lock(bt_key_file_t *f)
{
    char copy[PATH_BYTES];

    bt_str_copy(copy, sizeof copy, f->path);
    const char *folder = dirname(copy);
    f->lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->lock < 0)
        return fail(folder, "cannot be opened");
    return flock(f->lock, LOCK_EX) == 0 ? 0 : fail(folder, "cannot be locked");
}

static int read_text(bt_key_file_t *f, bool must_exist)
{
    char piece[8192];
    size_t n;
    FILE *in = fopen(f->path, "re");

    f->is_new = in == NULL && errno == ENOENT && !must_exist;
    if (f->is_new)
        return 0;
    if (in == NULL)
        return fail(f->path, "cannot be read");
    while ((n = fread(piece, 1, sizeof piece, in)) > 0)
        bt_text_put(&f->text, (bt_str_t){piece, n});
    const bool is_bad = ferror(in) || f->text.failed;
    fclose(in);
    return is_bad ? fail(f->path, "cannot be read") : 0;
}

int bt_key_file_open(bt_key_file_t *f, const char *path, bool must_exist, bool is_change)
{
    int status;

    *f = (bt_key_file_t){.lock = -1};
    bt_text_init(&f->text);
    f->path = realpath(path, f->resolved);
    if (f->path == NULL) { /* not there yet */
        bt_str_copy(f->resolved, sizeof f->resolved, path);
        f->path = f->resolved;
    }
    status = is_change ? take_lock(f) : 0;
    if (status == 0)
        status = read_text(f, must_exist);
    if (status != 0)
        bt_key_file_close(f);
    return status;
}

void bt_key_file_close(bt_key_file_t *f)
{
    bt_text_fini(&f->text);
    if (f->lock >= 0)
        close(f->lock);
    f->lock = -1;
}

/* ---- replacing ---- */

/* Whoever runs the gateway must still be able to read it. */
static int keep_mode(const bt_key_file_t *f, int fd)
{
    struct stat now;

    if (f->is_new)
        return 0;
    if (stat(f->path, &now) < 0 || fchmod(fd, now.st_mode & 07777) < 0)
        return -1;
    if (now.st_uid != geteuid() || now.st_gid != getegid())
        return fchown(fd, now.st_uid, now.st_gid);
    return 0;
}

static int write_all(const bt_key_file_t *f, int fd)
{
    for (size_t at = 0; at < f->text.len;) {
        const ssize_t n = write(fd, f->text.data + at, f->text.len - at);
        if (n < 0 && errno != EINTR)
            return -1;
        at += n > 0 ? (size_t) n : 0;
    }
    return fsync(fd);
}

static int is_good(const bt_key_file_t *f, const char *temporary)
{
    bt_key_table_t *table = NULL;
    char err[512] = "";
    int rc = bt_key_table_read(temporary, &table, err, sizeof err);

    bt_key_table_unref(table);
    if (rc == 0)
        return 0;
    const char *why =
        strncmp(err, temporary, strlen(temporary)) == 0 ? err + strlen(temporary) : "";
    return bt_tool_error(BT_TOOL_WRONG, "key: ", "%s%s; nothing was written", f->path,
                         rc == BT_E_CONFIG ? why : bt_err_text(rc));
}

int bt_key_file_replace(const bt_key_file_t *f)
{
    char temporary[PATH_BYTES + 32];
    int fd, status = 0;

    snprintf(temporary, sizeof temporary, "%s.%ld", f->path, (long) getpid());
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(temporary, "cannot be written");
    if (write_all(f, fd) < 0)
        status = fail(temporary, "cannot be written");
    else if (keep_mode(f, fd) < 0)
        status = fail(temporary, "cannot get the owner and mode that the file has");
    if (close(fd) < 0 && status == 0)
        status = fail(temporary, "cannot be written");
    if (status == 0)
        status = is_good(f, temporary);
    if (status == 0 && rename(temporary, f->path) < 0)
        status = fail(f->path, "cannot be replaced");
    if (status != 0)
        unlink(temporary);
    return status;
}
