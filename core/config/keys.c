/* Client keys: a file, one key a line. An empty file is refused: it would lock everybody out. */
#include "config/config.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define KEYS_MAX 4096U
#define KEY_BYTES_MAX 512U

static int add_key(char **keys, unsigned *count, bt_str_t line, const char *path, unsigned number,
                   char *err, size_t err_size)
{
    for (size_t i = 0; i < line.n; i++)
        if (line.p[i] <= ' ' || line.p[i] == 0x7f) {
            snprintf(err, err_size, "%s:%u: a key holds no spaces", path, number);
            return BT_E_CONFIG;
        }
    if (*count >= KEYS_MAX) {
        snprintf(err, err_size, "%s: more than %u keys", path, KEYS_MAX);
        return BT_E_CONFIG;
    }
    keys[*count] = bt_str_dup(line);
    if (keys[*count] == NULL)
        return BT_E_NOMEM;
    (*count)++;
    return 0;
}

static int read_lines(FILE *in, const char *path, char **keys, char *err, size_t err_size)
{
    char line[KEY_BYTES_MAX + 2];
    unsigned count = 0, number = 0;
    while (fgets(line, sizeof line, in) != NULL) {
        bt_str_t s = bt_str_trim(bt_str(line));
        number++;
        if (strchr(line, '\n') == NULL && !feof(in)) {
            snprintf(err, err_size, "%s:%u: a key has at most %u bytes", path, number,
                     KEY_BYTES_MAX);
            return BT_E_CONFIG;
        }
        if (s.n == 0 || s.p[0] == '#')
            continue;
        int rc = add_key(keys, &count, s, path, number, err, err_size);
        if (rc < 0)
            return rc;
    }
    if (count > 0)
        return 0;
    snprintf(err, err_size, "%s: no key in it: every client would be refused", path);
    return BT_E_CONFIG;
}

int bt_keys_read(const char *path, char ***keys_p, char *err, size_t err_size)
{
    FILE *in = fopen(path, "re");
    if (in == NULL) {
        snprintf(err, err_size, "%s: %s", path, strerror(errno));
        return BT_E_CONFIG;
    }
    char **keys = calloc(KEYS_MAX + 1, sizeof(char *));
    int rc = keys != NULL ? read_lines(in, path, keys, err, err_size) : BT_E_NOMEM;
    fclose(in);
    if (rc < 0)
        bt_keys_free(keys);
    else
        *keys_p = keys;
    return rc;
}

void bt_keys_free(char **keys)
{
    for (char **key = keys; key != NULL && *key != NULL; key++)
        free(*key);
    free(keys);
}
