/* expect.c - see expect.h. */
#include "expect.h"

#include "words.h"

#include <stdlib.h>

static void put_ids(bt_text_t *prompt, const char *text)
{
    char *end;

    while (*text != '\0') {
        uint32_t id = (uint32_t) strtoul(text, &end, 10);
        if (end == text)
            break;
        bt_text_put(prompt, (bt_str_t){(const char *) &id, sizeof(id)});
        text = *end != '\0' ? end + 1 : end;
    }
}

void sim_expect(const sim_options_t *o, bt_text_t *out)
{
    bt_text_t prompt;

    bt_text_init(&prompt);
    if (o->system != NULL)
        bt_text_printf(&prompt, "system\n%s\n", o->system);
    if (o->expect_chat)
        bt_text_printf(&prompt, "user\n%s\n", o->prompt != NULL ? o->prompt : "");
    else if (o->prompt != NULL)
        bt_text_puts(&prompt, o->prompt);
    else
        put_ids(&prompt, o->ids);
    sim_words(out, sim_kv(bt_text_str(&prompt)), o->request_seed, o->max_tokens);
    bt_text_fini(&prompt);
}
