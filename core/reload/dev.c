/* Lua tells lines, not columns. Most messages quote the word that is wrong, and where that stands on the line once, a caret can
 * point at it; otherwise the line alone is shown. */
#include "reload/dev.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define WIDTH 160 /* of a source line that is shown */

/* ---- the source line ---- */

/* "path:12: ..." -> 12; 0 = it names no line of this source. */
static unsigned line_of(const bt_policy_source_t *source, const char *error)
{
    const char *at = strstr(error, source->path);

    if (at == NULL || at[strlen(source->path)] != ':')
        return 0;
    return (unsigned) strtoul(at + strlen(source->path) + 1, NULL, 10);
}

static bt_str_t text_of_line(const bt_policy_source_t *source, unsigned line)
{
    const char *at = source->code;

    for (; line > 1 && at != NULL; line--) {
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL ? (bt_str_t){at, strcspn(at, "\r\n")} : BT_STR_NULL;
}

static bool is_word(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Where the word stands by itself, not as a part of a longer one; -1 = nowhere. */
static ptrdiff_t find_word(bt_str_t line, bt_str_t word)
{
    for (size_t i = 0; word.n > 0 && i + word.n <= line.n; i++)
        if (memcmp(line.p + i, word.p, word.n) == 0 &&
            !(i > 0 && is_word(word.p[0]) && is_word(line.p[i - 1])) &&
            !(i + word.n < line.n && is_word(word.p[word.n - 1]) && is_word(line.p[i + word.n])))
            return (ptrdiff_t) i;
    return -1;
}

/* The first quoted word of the message that stands on the line; -1 = none. */
static ptrdiff_t column_of(bt_str_t line, const char *error)
{
    const char *open, *close;

    for (; (open = strchr(error, '\'')) != NULL; error = close + 1) {
        close = strchr(open + 1, '\'');
        if (close == NULL)
            return -1;
        ptrdiff_t at = find_word(line, (bt_str_t){open + 1, (size_t) (close - open - 1)});
        if (at >= 0)
            return at;
    }
    return -1;
}

void bt_dev_excerpt(bt_text_t *out, const bt_policy_source_t *source, const char *error)
{
    const unsigned number = line_of(source, error);
    bt_str_t line = number > 0 ? text_of_line(source, number) : BT_STR_NULL;
    ptrdiff_t column;

    if (line.n == 0)
        return;
    line.n = line.n < WIDTH ? line.n : WIDTH;
    column = column_of(line, error);
    bt_text_printf(out, "%6u | ", number);
    for (size_t i = 0; i < line.n; i++) /* a terminal must not obey what a file holds */
        bt_text_printf(out, "%c",
                       line.p[i] == '\t' || (unsigned char) line.p[i] >= 0x20 ? line.p[i] : '?');
    bt_text_puts(out, "\n");
    if (column < 0)
        return;
    bt_text_puts(out, "       | ");
    for (ptrdiff_t i = 0; i < column; i++)
        bt_text_puts(out, line.p[i] == '\t' ? "\t" : " ");
    bt_text_puts(out, "^\n");
}

/* ---- what happens ---- */

static void print(bt_text_t *text)
{
    if (text->len > 0)
        bt_log_line((bt_str_t){text->data, text->len - 1}); /* without the last newline */
    bt_text_fini(text);
}

void bt_dev_refused(const bt_config_t *config, const bt_policy_source_t *source, const char *error,
                    bool is_logged)
{
    bt_text_t text;

    if (!config->dev || source == NULL)
        return;
    bt_text_init(&text);
    if (!is_logged)
        bt_text_printf(&text, "dev: refused: %s\n", error);
    bt_dev_excerpt(&text, source, error);
    print(&text);
}

void bt_dev_taken(const bt_config_t *config, const bt_policy_source_t *source)
{
    static const char *const kinds[] = {"pairs of workers", "single workers"};
    char err[1024];
    bt_policy_t *policy;
    bt_text_t text;

    if (!config->dev || source == NULL || source->kind == BT_SOURCE_SHIPPED)
        return;
    const bt_policy_spec_t spec = {
        .path = source->path, .code = {source->code, source->size}, .is_dry_run = true};
    if (bt_policy_make(&policy, &spec, err, sizeof err) < 0)
        return;
    bt_text_init(&text);
    for (int single = 0; single < 2; single++) {
        if (bt_policy_self_test_kind(policy, single != 0, err, sizeof err) >= 0)
            continue;
        bt_text_printf(&text, "dev: %s does not serve %s: %s\n", bt_policy_name(policy),
                       kinds[single], err);
    }
    print(&text);
    bt_policy_free(policy);
}
