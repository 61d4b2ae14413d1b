#include "config/suggest.h"

/* A third of the word may be wrong, two letters always: "prt" is near "port", "x" is near nothing. */
static unsigned allowance(bt_str_t word)
{
    unsigned third = (unsigned) (word.n / 3);
    return word.n < 3 ? 1 : third > 2 ? third : 2;
}

void bt_suggest_init(bt_suggest_t *s, bt_str_t word)
{
    *s = (bt_suggest_t){.word = word, .distance = allowance(word) + 1};
}

void bt_suggest_offer(bt_suggest_t *s, const char *name)
{
    unsigned distance = bt_str_distance(s->word, bt_str(name));
    if (distance >= s->distance)
        return;
    s->distance = distance;
    s->best = name;
}

const char *bt_suggest_best(const bt_suggest_t *s)
{
    return s->best;
}

const char *bt_suggest_row(const char *word, const void *rows, size_t count, size_t row_bytes)
{
    bt_suggest_t s;

    bt_suggest_init(&s, bt_str(word));
    for (size_t i = 0; i < count; i++)
        bt_suggest_offer(&s, *(const char *const *) ((const char *) rows + i * row_bytes));
    return bt_suggest_best(&s);
}
