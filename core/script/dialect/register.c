/* How it works: the files are loaded once more, only for what they say of connectors: a name belongs to
 * the whole process, while a dialect's functions belong to a loop's VM. */
#include "script/dialect/dialect_impl.h"

#include "base/err.h"

#include <stdio.h>

static int add(const struct bt_dialect_file *file, const char *connector, char *err,
               size_t err_size)
{
    const bt_own_connector_t own = {
        .connector = connector,
        .dialect = file->name,
        .cap = file->pub.kind == BT_PLAN_HANDOFF ? BT_CAP_PREFILL_HANDOFF_DECODE
                                                 : BT_CAP_CONCURRENT_ENGINE_SYNC,
        .engine = file->engine,
        .serves_alone = file->pub.has_single,
        .is_trigger = file->pub.kind == BT_PLAN_TRIGGER,
    };
    int rc = bt_capability_add(&own);

    if (rc == BT_E_INVAL)
        snprintf(err, err_size,
                 "%s: connectors: \"%.100s\" was said before with another dialect, kind, engine or "
                 "`single`: "
                 "name it in one file, and restart after a change",
                 file->path, connector);
    else if (rc < 0)
        snprintf(err, err_size, "%s: connectors: \"%.100s\": %s", file->path, connector,
                 bt_err_text(rc));
    return rc;
}

static int add_file(const struct bt_dialect_file *file, char *err, size_t err_size)
{
    int rc = add(file, file->name, err, err_size); /* a connector's name too, as the shipped are */

    for (unsigned i = 0; i < file->connector_count && rc == 0; i++)
        rc = add(file, file->connectors[i], err, err_size);
    return rc;
}

int bt_dialects_register(const char *user_dir, char *err, size_t err_size)
{
    bt_dialects_t *d;
    int rc = bt_dialects_new(&d, user_dir, err, err_size);

    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < d->count && rc == 0; i++)
        if (d->files[i]->path != NULL)
            rc = add_file(d->files[i], err, err_size);
    bt_dialects_free(d);
    return rc;
}
