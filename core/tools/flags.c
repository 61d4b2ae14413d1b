#include "tools/flags.h"

#include "config/suggest.h"

#include <stdio.h>
#include <string.h>

#define refuse(syntax, fmt, ...)                                                                   \
    bt_tool_error(BT_TOOL_WRONG, "", "%s: " fmt, (syntax)->command, __VA_ARGS__)

static int refuse_flag(const bt_tool_syntax_t *s, const char *word)
{
    char name[101];

    snprintf(name, sizeof name, "%.*s", (int) strcspn(word, "="), word);
    const char *near = bt_suggest_row(name, s->flags, s->flag_count, sizeof s->flags[0]);
    if (near != NULL)
        return refuse(s, "%s: unknown flag, did you mean %s?", name, near);
    return refuse(s, "%s: unknown flag; baton %s --help lists them", name, s->command);
}

int bt_tool_refuse_value(const bt_tool_line_t *line)
{
    return refuse(line->syntax, "%s %.60s: not a value of it; baton %s --help tells them",
                  line->flag->name, line->value, line->syntax->command);
}

static const bt_tool_flag_t *find(const bt_tool_syntax_t *s, const char *word)
{
    const size_t n = strcspn(word, "=");

    for (size_t i = 0; i < s->flag_count; i++)
        if (strncmp(s->flags[i].name, word, n) == 0 && s->flags[i].name[n] == '\0')
            return &s->flags[i];
    return NULL;
}

static int add_text(const bt_tool_line_t *line, void *options)
{
    const bt_option_t *o = &line->flag->option;
    const char **texts = (void *) ((char *) options + o->offset);
    unsigned *count = (void *) ((char *) options + o->count_offset);

    if (*count == o->list_max)
        return refuse(line->syntax, "%s: at most %u", line->flag->name, o->list_max);
    texts[(*count)++] = line->value;
    return 0;
}

static int store(bt_tool_line_t *line, void *options)
{
    const bt_option_t *o = &line->flag->option;
    char err[256];

    if (o->kind == BT_OPTION_NONE)
        return line->flag->read(options, line);
    if (o->kind == BT_OPTION_TEXTS)
        return add_text(line, options);
    if (o->kind == BT_OPTION_TEXT) {
        *(const char **) (void *) ((char *) options + o->offset) = line->value;
        return 0;
    }
    return bt_option_set_text(o, options, bt_str(line->value), err, sizeof err) < 0
               ? refuse(line->syntax, "%s: %s", line->flag->name, err)
               : 0;
}

static int read_flag(bt_tool_line_t *line, void *options)
{
    const char *word = line->argv[line->at], *equals = strchr(word, '=');

    line->flag = find(line->syntax, word);
    if (line->flag == NULL)
        return refuse_flag(line->syntax, word);
    if (line->flag->option.kind == BT_OPTION_BOOL) {
        *(bool *) ((char *) options + line->flag->option.offset) = true;
        return equals == NULL ? 0 : refuse(line->syntax, "%s has no value", line->flag->name);
    }
    if (equals == NULL && line->at + 1 == line->argc)
        return refuse(line->syntax, "%s needs a value", line->flag->name);
    line->value = equals != NULL ? equals + 1 : line->argv[++line->at];
    return store(line, options);
}

int bt_tool_flags_read(const bt_tool_syntax_t *syntax, void *options, int argc,
                       const char *const *argv)
{
    bt_tool_line_t line = {.syntax = syntax, .argc = argc, .argv = argv};
    int status = 0;

    for (; line.at < argc && status == 0; line.at++) {
        const char *word = argv[line.at];
        const bool is_flag = word[0] == '-' && word[1] != '\0'; /* "-" is stdin */
        status = is_flag || syntax->read_word == NULL ? read_flag(&line, options)
                                                      : syntax->read_word(options, &line);
    }
    return status;
}
