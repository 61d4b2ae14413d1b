/* load.h - what the specs of core/config share: a command line as one string, and files in a folder of their own. */
#ifndef SPEC_CONFIG_LOAD_H
#define SPEC_CONFIG_LOAD_H

#include "config/config.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOAD_ARGS_MAX 48

static char load_err[BT_CONFIG_ERR_BYTES];
static char load_dir[64];

/* Words of line, split at spaces; argv points into copy. */
static int load_split(const char *line, char *copy, size_t size, const char **argv)
{
    int argc = 0;
    assert_true(strlen(line) < size);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(argc < LOAD_ARGS_MAX);
        argv[argc++] = word;
    }
    return argc;
}

static inline int load_line(bt_config_t *c, const char *line)
{
    char copy[1024];
    const char *argv[LOAD_ARGS_MAX];
    int argc = load_split(line, copy, sizeof copy, argv);
    load_err[0] = '\0';
    return bt_config_load(c, argc, argv, load_err, sizeof load_err);
}

/* Loads, and shows why not. */
static inline void load_ok(bt_config_t *c, const char *line)
{
    if (load_line(c, line) < 0)
        fail_msg("%s: %s", line, load_err);
}

static inline void load_refused(const char *line, const char *why)
{
    bt_config_t c;
    if (load_line(&c, line) == 0)
        fail_msg("%s: accepted", line);
    assert_string_equal(load_err, why);
}

static inline const char *load_folder(void)
{
    if (load_dir[0] == '\0') {
        strcpy(load_dir, "/tmp/baton-config-XXXXXX");
        assert_non_null(mkdtemp(load_dir));
    }
    return load_dir;
}

/* Writes a file of the folder; the path stays valid until the next call but three. */
static inline const char *load_write(const char *name, const char *text)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", load_folder(), name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    return path;
}

/* Flat folders only. */
static inline int load_cleanup(void **state)
{
    char command[128];
    if (load_dir[0] == '\0')
        return 0;
    snprintf(command, sizeof command, "rm -rf %s", load_dir);
    return system(command);
}

#endif
