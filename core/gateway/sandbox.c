/* Directories, not files: what is named is replaced by rename, certificates and ConfigMaps are links into directories beside them, and a rule holds for what was
 * there when it was made. The system's own directories stay readable (resolv.conf, CA bundles, libraries that are loaded late); what is kept out of reach
 * is other people's data, and writing anywhere but where the configuration says.
 *
 * The program's directory and the loader's may be started from: SIGUSR2 starts what lies where this program lay.
 */
#include "gateway/sandbox.h"

#include "base/err.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "config/flag.h"
#include "config/passed.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

static const char *const readable[] = {"/usr",
                                       "/lib",
                                       "/lib64",
                                       "/etc",
                                       "/proc",
                                       "/sys",
                                       "/run/systemd/resolve",
                                       "/run/secrets",
                                       "/var/run/secrets"};

typedef struct sandbox_rules {
    bt_sandbox_t sandbox;
    char failed[PATH_BYTES]; /* the first that could not be allowed */
    int rc;
} sandbox_rules_t;

static void allow(sandbox_rules_t *r, const char *path, unsigned access)
{
    int rc = bt_sandbox_allow(&r->sandbox, path, access);

    if (rc < 0 && r->rc == 0) {
        r->rc = rc;
        bt_str_copy(r->failed, sizeof r->failed, path);
    }
}

/* Of a file; the text before its last slash. */
static void allow_folder(sandbox_rules_t *r, const char *path, unsigned access)
{
    char folder[PATH_BYTES];
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        bt_str_copy(folder, sizeof folder, ".");
    else
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int) (slash - path), path);
    allow(r, folder, access);
}

/* What it names, and where it lies: a link's directory too, and where the link leads. */
static void allow_named(sandbox_rules_t *r, const char *path, unsigned access)
{
    char *real = realpath(path, NULL);

    allow_folder(r, path, access);
    allow(r, path, access & BT_SANDBOX_READ);
    if (real != NULL)
        allow_folder(r, real, access);
    free(real);
}

static unsigned access_of(const bt_flag_t *flag)
{
    static const char *const written[] = {"log-file",   "audit-log",  "record-file",
                                          "crash-file", "ready-file", "kv-snapshot"};

    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++)
        if (strcmp(flag->name, written[i]) == 0)
            return BT_SANDBOX_READ | BT_SANDBOX_WRITE;
    return BT_SANDBOX_READ;
}

static void allow_setting(sandbox_rules_t *r, const bt_config_t *c, const bt_flag_t *flag)
{
    const char *base = (const char *) c;
    const bt_option_t *o = &flag->option;
    char *const *paths = (char *const *) (const void *) (base + o->offset);
    unsigned count = 1;

    if (flag->kind != BT_FLAG_SETTING || (o->kind != BT_OPTION_PATH && o->kind != BT_OPTION_PATHS))
        return;
    if (o->kind == BT_OPTION_PATHS)
        count = *(const unsigned *) (const void *) (base + o->count_offset);
    for (unsigned i = 0; i < count; i++)
        if (paths[i] != NULL && strcmp(paths[i], "stderr") != 0)
            allow_named(r, paths[i], access_of(flag));
}

static void allow_policies(sandbox_rules_t *r, const bt_pool_spec_t *spec)
{
    const char *const names[] = {spec->policy, spec->prefill_policy, spec->decode_policy};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i] != NULL && (strchr(names[i], '/') != NULL || strstr(names[i], ".lua") != NULL))
            allow_named(r, names[i], BT_SANDBOX_READ);
}

/* The loader that the kernel starts a program like this one with. */
static int allow_loader(struct dl_phdr_info *info, size_t size, void *user)
{
    (void) size;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_INTERP)
            continue;
        uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        char *real = realpath((const char *) at, NULL);
        if (real != NULL)
            allow_folder(user, real, BT_SANDBOX_READ | BT_SANDBOX_EXECUTE);
        free(real);
    }
    return 1; /* the first one is the program */
}

static void allow_program(sandbox_rules_t *r)
{
    char path[PATH_BYTES];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    if (n <= 0)
        return;
    path[n] = '\0';
    allow_folder(r, path, BT_SANDBOX_READ | BT_SANDBOX_EXECUTE);
    (void) dl_iterate_phdr(allow_loader, r);
}

static void allow_all(sandbox_rules_t *r, const bt_config_t *c)
{
    for (size_t i = 0; i < sizeof readable / sizeof readable[0]; i++)
        allow(r, readable[i], BT_SANDBOX_READ);
    allow(r, "/dev", BT_SANDBOX_READ | BT_SANDBOX_WRITE);
    allow_program(r);
    if (c->file != NULL)
        allow_named(r, c->file, BT_SANDBOX_READ);
    for (unsigned i = 0; i < bt_flag_count; i++)
        allow_setting(r, c, &bt_flags[i]);
    allow_policies(r, &c->defaults.spec);
    for (unsigned i = 0; i < c->pool_count; i++)
        allow_policies(r, &c->pools[i].spec);
}

const char *bt_gateway_sandbox_mode(const bt_config_t *c)
{
    static const char *const names[] = {
        [BT_SANDBOX_OFF] = "off", [BT_SANDBOX_AUTO] = "auto", [BT_SANDBOX_STRICT] = "strict"};

    return names[c->sandbox];
}

/* EPERM is no answer of Landlock's: a filter that is older than it, a service manager's or a container's, gives that one. */
static const char *why_none(int rc)
{
    return rc == -EPERM ? "its calls are refused by a filter around the gateway (systemd: "
                          "SystemCallFilter=)"
                        : "this kernel has no Landlock";
}

int bt_gateway_sandbox(const bt_config_t *c, char *err, size_t err_size)
{
    sandbox_rules_t r = {.rc = 0};

    if (c->sandbox == BT_SANDBOX_OFF)
        return 0;
    int rc = bt_sandbox_open(&r.sandbox);
    if (rc < 0 && c->sandbox == BT_SANDBOX_STRICT)
        return bt_err_refuse(err, err_size,
                             "--sandbox strict: %s: %s; --sandbox auto goes on without",
                             why_none(rc), strerror(-rc));
    if (rc < 0) {
        bt_log_warn("gateway", "no sandbox: %s: %s", why_none(rc), strerror(-rc));
        return 0;
    }
    allow_all(&r, c);
    if (r.rc < 0) {
        bt_sandbox_close(&r.sandbox);
        return bt_err_refuse(err, err_size, "--sandbox: %.200s cannot be allowed: %s", r.failed,
                             strerror(-r.rc));
    }
    rc = bt_sandbox_enter(&r.sandbox);
    /* Each of the line adds a layer, and the kernel has a most: who stood before us was inside as well. */
    if (rc == -E2BIG && bt_passed_upgrade_fd() >= 0) {
        bt_sandbox_inherit();
        bt_log_warn("gateway", "sandbox: that of the gateways before this one, for the kernel adds "
                               "no other after so many upgrades; a restart makes it anew");
        return 0;
    }
    if (rc < 0)
        return bt_err_refuse(err, err_size, "--sandbox: %s", strerror(-rc));
    bt_log_info("gateway", "sandbox: files of the system and of the configuration's directories "
                           "only, no calls for other processes, mounts, namespaces, modules");
    return 0;
}
