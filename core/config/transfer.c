/* The token that transfer agents prove, as it is said or from a file, where it may be several, each of which is taken (transport/wire/auth.h
 * says how they are changed).
 */
#include "config/config_impl.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>

#define TOKENS_MAX 1024 /* bytes of them all: BT_KV_SECRET_MAX */
#define TOKEN_MIN 16    /* what is said on the wire can be guessed at by whoever has read it */

static int refuse_file(const bt_config_t *c, const char *why, char *err, size_t err_size)
{
    return bt_err_refuse(err, err_size, "--transfer-token-file: %.200s: %s", c->transfer_token_file,
                         why);
}

static bool is_token(bt_str_t token)
{
    for (size_t i = 0; i < token.n; i++)
        if ((unsigned char) token.p[i] < ' ' || token.p[i] == 0x7f)
            return false;
    return token.n >= TOKEN_MIN;
}

/* Blank lines count for nothing, and neither do blanks at the ends of a line. */
static int take_lines(bt_config_t *c, const char *text, char *err, size_t err_size)
{
    bt_text_t tokens;
    bool is_good = true;

    bt_text_init(&tokens);
    for (const char *p = text; *p != '\0' && is_good; p += *p == '\n') {
        size_t n = strcspn(p, "\n");
        bt_str_t token = bt_str_trim((bt_str_t){p, n});
        is_good = token.n == 0 || is_token(token);
        if (token.n > 0)
            bt_text_printf(&tokens, "%.*s\n", BT_STR_ARG(token));
        p += n;
    }
    if (is_good && tokens.len > 0)
        c->transfer_tokens = bt_str_dup(bt_text_str(&tokens));
    is_good &= tokens.len > 0;
    bt_text_fini(&tokens);
    if (is_good)
        return c->transfer_tokens != NULL ? 0 : BT_E_NOMEM;
    return refuse_file(c,
                       "expected a token a line, of 16 or more printable characters: make one with "
                       "openssl rand -hex 32",
                       err, err_size);
}

static int read_file(bt_config_t *c, char *err, size_t err_size)
{
    char text[TOKENS_MAX + 2];
    FILE *in = fopen(c->transfer_token_file, "re");

    if (in == NULL)
        return refuse_file(c, strerror(errno), err, err_size);
    size_t n = fread(text, 1, sizeof text - 1, in);
    const bool is_whole = ferror(in) == 0;
    fclose(in);
    text[n] = '\0';
    if (!is_whole || n > TOKENS_MAX)
        return refuse_file(c, "cannot be read, or has more than 1024 bytes", err, err_size);
    return take_lines(c, text, err, err_size);
}

int bt_config_finish_transfer(bt_config_t *c, char *err, size_t err_size)
{
    if (c->transfer_token != NULL && c->transfer_token_file != NULL)
        return bt_err_refuse(err, err_size,
                             "--transfer-token-file: the token is given by --transfer-token; give "
                             "one of them");
    if (c->transfer_token_file != NULL)
        return read_file(c, err, err_size);
    if (c->transfer_token == NULL)
        return 0;
    c->transfer_tokens = bt_str_dup(bt_str(c->transfer_token));
    return c->transfer_tokens != NULL ? 0 : BT_E_NOMEM;
}

/* Whoever may speak to agents makes engines write their memory where he wants. */
int bt_config_check_transfer(const bt_config_t *c, char *err, size_t err_size)
{
    if (!bt_config_has_transfer(c) || c->transfer_tokens != NULL ||
        bt_host_is_loopback(c->transfer_host))
        return 0;
    return bt_err_refuse(
        err, err_size,
        "--transfer-host: %.120s is beyond loopback, where everybody could pass for an "
        "engine's agent; give --transfer-token TOKEN to both",
        c->transfer_host);
}
