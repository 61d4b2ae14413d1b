/* The words and flags of `baton key`. The key itself goes to stdout and nowhere else; all that is about it to stderr. */
#include "tools/key.h"

#include "base/clock.h"
#include "base/rand.h"
#include "identity/identity.h"
#include "identity/key_line.h"
#include "tools/flags.h"

#include <stdio.h>
#include <stdlib.h>

#define refuse(...) bt_tool_error(BT_TOOL_WRONG, "key: ", __VA_ARGS__)
#define ID_CHARS 10
#define SECRET_BYTES 32
#define DAY_MS UINT64_C(86400000)
#define DEFAULT_EXPIRY "90d"

typedef struct options {
    const char *words[3];
    unsigned count;
    const char *tenant, *scopes, *models, *expires, *comment;
    bool sets_tenant, is_json;
    bt_key_place_t store; /* url NULL: a file */
} options_t;

void bt_key_tool_help(bt_text_t *out)
{
    bt_text_puts(
        out,
        "usage: baton key COMMAND FILE [flags]\n"
        "       baton key COMMAND --store URL [flags]\n\n"
        "Keys of clients and operators in FILE, which gateways read by --client-api-keys-file and "
        "follow as it changes,\n"
        "or in the Redis of a fleet, whose gateways read them there by "
        "--client-api-keys-in-store.\n"
        "Each holds a salted hash of each key, never the key.\n\n"
        "  new FILE                  makes a key and prints it, once\n"
        "      [--tenant NAME]       whose it is (the key's own id)\n"
        "      [--scopes LIST]       what it may: inference, models, cancel, admin-read, "
        "admin-write, kv-hints (" BT_SCOPES_CLIENT ")\n"
        "      [--models LIST]       names, or beginnings with * behind them (all)\n"
        "      [--expires WHEN]      days (30d), 2027-02-25, 2027-02-25T08:00:00Z or never "
        "(" DEFAULT_EXPIRY ")\n"
        "      [--set-tenant]        x-tenant-id counts: for a proxy that serves several tenants\n"
        "      [--comment TEXT]      for people\n"
        "  list FILE [--json]        all keys, and which of them count\n"
        "  revoke FILE ID            its line stays and says when; gateways refuse it within a "
        "second\n"
        "  --store URL               instead of FILE: the gateways' --redis-url; its password may "
        "be in "
        "BATON_REDIS_PASSWORD\n"
        "      [--fleet-name NAME]   the gateways' --fleet-name (fleet)\n"
        "      [--tls-ca FILE]       authorities of a rediss:// server's certificate (the "
        "system's)\n"
        "\n"
        "Exit status: 0 done, 1 the file or store could not be read or written, 2 a wrong command "
        "line or "
        "file.\n"
        "\n"
        "Examples\n"
        "  baton key new keys.txt --tenant acme --expires 30d --comment \"batch jobs\"\n"
        "  baton key new keys.txt --scopes admin-read --comment grafana   # for the admin port, "
        "beside --admin-api-key\n"
        "  baton key list keys.txt\n"
        "  baton key revoke keys.txt bk_k3v7q2m5xw\n"
        "  baton key new --store redis://10.0.0.5:6379 --tenant acme\n");
}

/* ---- flags ---- */

#define TEXT(flag, member) BT_TOOL_TEXT(flag, options_t, member)
#define SWITCH(flag, member) BT_TOOL_SWITCH(flag, options_t, member)
static const bt_tool_flag_t flags[] = {TEXT("--tenant", tenant),
                                       TEXT("--scopes", scopes),
                                       TEXT("--models", models),
                                       TEXT("--expires", expires),
                                       TEXT("--comment", comment),
                                       TEXT("--store", store.url),
                                       TEXT("--fleet-name", store.fleet),
                                       TEXT("--tls-ca", store.ca_file),
                                       SWITCH("--set-tenant", sets_tenant),
                                       SWITCH("--json", is_json)};

static int read_word(void *options, bt_tool_line_t *line)
{
    options_t *o = options;

    if (o->count == sizeof o->words / sizeof o->words[0])
        return refuse("too many words");
    o->words[o->count++] = line->argv[line->at];
    return 0;
}

static const bt_tool_syntax_t syntax = {"key", flags, sizeof flags / sizeof flags[0], read_word};

/* ---- time ---- */

static void put_time(bt_text_t *out, const char *what, uint64_t wall_ms)
{
    char text[32];

    bt_clock_iso8601(wall_ms / 1000 * 1000, text, sizeof text);
    bt_text_printf(out, " %s=%.19sZ", what, text); /* without .000 */
}

/* UINT64_MAX: never. */
static int read_expiry(const char *text, uint64_t *wall_ms_p)
{
    char *end;
    const unsigned long days = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;

    if (strcmp(text, "never") == 0) {
        *wall_ms_p = UINT64_MAX;
        return 0;
    }
    if (days > 0 && days <= 36500 && strcmp(end, "d") == 0) {
        *wall_ms_p = bt_clock_wall_ms() + days * DAY_MS;
        return 0;
    }
    if (bt_key_time_read(bt_str(text), wall_ms_p) < 0)
        return refuse("--expires %.40s: days (30d), 2027-02-25, 2027-02-25T08:00:00Z or never",
                      text);
    if (*wall_ms_p <= bt_clock_wall_ms())
        return refuse("--expires %.40s: is over", text);
    return 0;
}

/* ---- a file or the store ---- */

static int open_keys(const options_t *o, bt_key_file_t *f, bool must_exist, bool is_change)
{
    return o->store.url != NULL ? bt_key_store_open(f, &o->store)
                                : bt_key_file_open(f, o->words[1], must_exist, is_change);
}

static int write_keys(const options_t *o, const bt_key_file_t *f, bool is_new)
{
    return o->store.url != NULL ? bt_key_store_put(f, &o->store, is_new) : bt_key_file_replace(f);
}

/* ---- new ---- */

/* Lower case without l, o, 0 and 1: 5 bits each. */
static void random_text(char *out, unsigned chars)
{
    static const char alphabet[] = "abcdefghijkmnpqrstuvwxyz23456789";
    unsigned char bytes[64];

    bt_rand_secure(bytes, sizeof bytes);
    for (unsigned i = 0; i < chars; i++)
        out[i] = alphabet[bytes[i] & 31];
    out[chars] = '\0';
    explicit_bzero(bytes, sizeof bytes);
}

static void put_hex(bt_text_t *out, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bt_text_printf(out, "%02x", bytes[i]);
}

/* A word: what is in it would become another one. */
static int check_word(const char *flag, const char *text)
{
    for (const char *p = text; p != NULL && *p != '\0'; p++)
        if ((unsigned char) *p <= ' ' || *p == 0x7f || *p == '#')
            return refuse("%s: no blanks, '#' or control characters", flag);
    return text == NULL || *text != '\0' ? 0 : refuse("%s: is empty", flag);
}

static int check_new(const options_t *o)
{
    bt_str_t unknown = BT_STR_NULL;
    int status = check_word("--tenant", o->tenant);

    if (status == 0)
        status = check_word("--scopes", o->scopes);
    if (status == 0)
        status = check_word("--models", o->models);
    if (status == 0 && o->tenant != NULL && !bt_tenant_is_name(bt_str(o->tenant)))
        status =
            refuse("--tenant: at most %d letters, digits, '_', '-', '.' are needed", BT_TENANT_MAX);
    if (status == 0 && o->scopes != NULL)
        (void) bt_scopes_read(bt_str(o->scopes), &unknown);
    if (unknown.p != NULL)
        status = refuse("--scopes: \"%.*s\" is none; there are inference, models, cancel, "
                        "admin-read, admin-write and kv-hints",
                        BT_STR_ARG(unknown));
    for (const char *p = o->comment; status == 0 && p != NULL && *p != '\0'; p++)
        if ((unsigned char) *p < ' ' || *p == 0x7f)
            status = refuse("--comment: one line without control characters");
    return status;
}

/* Its line into the text; the key into key. */
static void make_key(const options_t *o, uint64_t expires_ms, bt_text_t *out, char *key,
                     size_t key_size)
{
    unsigned char salt[BT_KEY_SALT_BYTES], digest[BT_SHA256_BYTES];
    char id[ID_CHARS + 1], secret[SECRET_BYTES * 8 / 5 + 2];

    random_text(id, ID_CHARS);
    random_text(secret, sizeof secret - 1);
    bt_rand_secure(salt, sizeof salt);
    bt_sha256_of((bt_str_t){(const char *) salt, sizeof salt}, bt_str(secret), digest);
    snprintf(key, key_size, BT_KEY_PREFIX "%s_%s", id, secret);
    explicit_bzero(secret, sizeof secret);
    bt_text_printf(out, BT_KEY_PREFIX "%s sha256:", id);
    put_hex(out, salt, sizeof salt);
    bt_text_puts(out, ":");
    put_hex(out, digest, sizeof digest);
    bt_text_printf(out, " tenant=%s%s", o->tenant != NULL ? o->tenant : BT_KEY_PREFIX,
                   o->tenant != NULL ? "" : id);
    bt_text_printf(out, " scopes=%s", o->scopes != NULL ? o->scopes : BT_SCOPES_CLIENT);
    if (o->models != NULL)
        bt_text_printf(out, " models=%s", o->models);
    put_time(out, "created", bt_clock_wall_ms());
    if (expires_ms != UINT64_MAX)
        put_time(out, "expires", expires_ms);
    if (o->sets_tenant)
        bt_text_puts(out, " set-tenant");
    if (o->comment != NULL)
        bt_text_printf(out, "  # %s", o->comment);
    bt_text_puts(out, "\n");
}

static int new_key(const options_t *o)
{
    uint64_t expires_ms = 0;
    char key[128] = "";
    bt_key_file_t f;
    int status = check_new(o);

    if (status == 0)
        status = read_expiry(o->expires != NULL ? o->expires : DEFAULT_EXPIRY, &expires_ms);
    if (status == 0)
        status = open_keys(o, &f, false, true);
    if (status != 0)
        return status;
    if (f.text.len > 0 && f.text.data[f.text.len - 1] != '\n')
        bt_text_puts(&f.text, "\n");
    const size_t from = f.text.len;
    make_key(o, expires_ms, &f.text, key, sizeof key);
    f.changed_at = from;
    status = write_keys(o, &f, true);
    if (status == 0) {
        fprintf(stderr, "%.*s", (int) (f.text.len - from), f.text.data + from);
        fprintf(stderr, "the key is shown once, here; the line above stands in %s\n",
                o->store.url != NULL ? f.path : "the file");
        printf("%s\n", key);
    }
    explicit_bzero(key, sizeof key);
    bt_key_file_close(&f);
    return status != 0 ? status : bt_tool_flushed();
}

/* ---- list ---- */

static const char *state_of(const bt_key_line_t *line)
{
    if (line->revoked.p != NULL)
        return "revoked";
    return bt_clock_wall_ms() >= line->expires_ms ? "expired" : "valid";
}

/* A plain key is called what the gateway calls it; nobody sees the key. */
static bt_str_t name_of(const bt_key_line_t *line, char *plain, size_t size)
{
    if (line->is_hashed)
        return line->name;
    snprintf(plain, size, "key-%08x", (unsigned) bt_identity_owner(BT_STR(""), line->name));
    return bt_str(plain);
}

static void put_row(const bt_key_line_t *line, bool is_json, bt_text_t *out)
{
    char plain[24];
    const bt_str_t id = name_of(line, plain, sizeof plain),
                   tenant = line->tenant.n > 0 ? line->tenant : id,
                   scopes = line->scopes.n > 0 ? line->scopes : BT_STR(BT_SCOPES_CLIENT);
    const struct {
        const char *name;
        bt_str_t value;
    } all[] = {{"id", id},
               {"tenant", tenant},
               {"scopes", scopes},
               {"state", bt_str(state_of(line))},
               {"expires", line->expires},
               {"created", line->created},
               {"revoked", line->revoked},
               {"models", line->models},
               {"comment", line->comment}};

    if (!is_json) {
        bt_text_printf(out, "%-14.*s %-16.*s %-26.*s %-8s %-21.*s%s%.*s\n", BT_STR_ARG(id),
                       BT_STR_ARG(tenant), BT_STR_ARG(scopes), state_of(line),
                       BT_STR_ARG(line->expires.n > 0 ? line->expires : BT_STR("never")),
                       line->is_hashed ? "" : "(plain) ", BT_STR_ARG(line->comment));
        return;
    }
    bt_text_puts(out, out->len > 1 ? ",\n{" : "{");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        bt_text_printf(out, "%s\"%s\":", i > 0 ? "," : "", all[i].name);
        if (all[i].value.p != NULL)
            bt_text_json_str(out, all[i].value);
        else
            bt_text_puts(out, "null");
    }
    bt_text_puts(out, line->is_hashed ? ",\"plain\":false}" : ",\"plain\":true}");
}

/* The next line of the text from *at on; false: there is none. */
static bool next_line(const bt_text_t *text, size_t *at, bt_str_t *line_p)
{
    const char *from = text->data + *at, *end;

    if (*at >= text->len)
        return false;
    end = memchr(from, '\n', text->len - *at);
    *line_p = (bt_str_t){from, end != NULL ? (size_t) (end - from) : text->len - *at};
    *at += line_p->n + 1;
    return true;
}

static int read_line(const bt_key_file_t *f, bt_str_t text, unsigned number, bt_key_line_t *line)
{
    char why[256] = "it is no hashed key";
    const bt_key_line_t none = {.expires_ms = 0};

    if (bt_key_line_read(text, line, why, sizeof why) == 0 && (!f->is_shared || line->is_hashed))
        return 0;
    if (!f->is_shared)
        return refuse("%s:%u: %s", f->path, number, why);
    bt_str_t id = line->name, secret;
    (void) bt_key_split(id, &id, &secret);
    *line = none;
    return bt_tool_error(0, "key: ", "%s: the row %.*s is left out: %s", f->path,
                         BT_STR_ARG(bt_str_cut(id, 16)), why);
}

static int list_keys(const options_t *o)
{
    unsigned number = 0;
    bt_key_line_t line;
    bt_key_file_t f;
    bt_str_t text;
    bt_text_t out;
    int status = open_keys(o, &f, true, false);

    if (status != 0)
        return status;
    bt_text_init(&out);
    if (o->is_json)
        bt_text_puts(&out, "[");
    else
        bt_text_printf(&out, "%-14s %-16s %-26s %-8s %-21s%s\n", "ID", "TENANT", "SCOPES", "STATE",
                       "EXPIRES", "COMMENT");
    for (size_t at = 0; status == 0 && next_line(&f.text, &at, &text);) {
        status = read_line(&f, text, ++number, &line);
        if (status == 0 && line.name.n > 0)
            put_row(&line, o->is_json, &out);
    }
    if (o->is_json)
        bt_text_puts(&out, "]\n");
    if (status == 0)
        fwrite(out.data, 1, out.len, stdout);
    bt_text_fini(&out);
    bt_key_file_close(&f);
    return status != 0 ? status : bt_tool_flushed();
}

/* ---- revoke ---- */

static void put_revoked(const bt_key_line_t *line, bt_str_t text, bt_text_t *out)
{
    const char *end =
        line->comment.p != NULL ? memrchr(text.p, '#', (size_t) (line->comment.p - text.p)) : NULL;
    const bt_str_t head =
        bt_str_trim((bt_str_t){text.p, end != NULL ? (size_t) (end - text.p) : text.n});

    bt_text_put(out, head);
    put_time(out, "revoked", bt_clock_wall_ms());
    if (line->comment.n > 0)
        bt_text_printf(out, "  # %.*s", BT_STR_ARG(line->comment));
}

/* Rewrites the text; *found_p: the key's line has been seen. */
static int revoke_in(bt_key_file_t *f, bt_str_t id, bool *found_p)
{
    unsigned number = 0;
    bt_key_line_t line;
    bt_text_t out;
    bt_str_t text;
    int status = 0;

    bt_text_init(&out);
    for (size_t at = 0; status == 0 && next_line(&f->text, &at, &text);) {
        status = read_line(f, text, ++number, &line);
        const bool is_it = status == 0 && line.is_hashed && bt_str_eq(line.name, id);
        if (is_it && line.revoked.p != NULL)
            status = refuse("%.*s: has been revoked before", BT_STR_ARG(id));
        *found_p = *found_p || is_it;
        if (is_it)
            f->changed_at = out.len;
        if (is_it)
            put_revoked(&line, text, &out);
        else
            bt_text_put(&out, text);
        bt_text_puts(&out, "\n");
    }
    bt_text_fini(&f->text);
    f->text = out;
    return status;
}

static int revoke_key(const options_t *o)
{
    bt_str_t id = bt_str(o->words[2]), secret;
    bool is_found = false;
    bt_key_file_t f;
    int status;

    if (o->count < 3)
        return refuse("revoke FILE ID: the key's id is missing; baton key list FILE shows it");
    (void) bt_key_split(id, &id, &secret); /* of a whole key: its id */
    status = open_keys(o, &f, true, true);
    if (status != 0)
        return status;
    status = revoke_in(&f, id, &is_found);
    if (status == 0 && !is_found)
        status = refuse("%s: there is no %.*s; a plain key has no id: take its line out", f.path,
                        BT_STR_ARG(id));
    if (status == 0)
        status = write_keys(o, &f, false);
    if (status == 0)
        fprintf(stderr, "%.*s is revoked\n", BT_STR_ARG(id));
    bt_key_file_close(&f);
    return status;
}

/* ---- the words ---- */

static const struct command {
    const char *word;
    int (*run)(const options_t *o);
} commands[] = {{"new", new_key}, {"list", list_keys}, {"revoke", revoke_key}};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

/* What stands behind the command is then no file: an id, or nothing. */
static int take_store(options_t *o)
{
    if (o->store.url == NULL && (o->store.fleet != NULL || o->store.ca_file != NULL))
        return refuse("--fleet-name, --tls-ca: there is no --store");
    if (o->store.url == NULL)
        return 0;
    if (o->count > (strcmp(o->words[0], "revoke") == 0 ? 2U : 1U))
        return refuse("--store: beside it there is no FILE");
    if (o->store.fleet == NULL)
        o->store.fleet = "fleet";
    o->words[2] = o->words[1];
    o->words[1] = "the store";
    o->count++;
    return 0;
}

int bt_key_tool(int argc, const char *const *argv)
{
    options_t o = {.count = 0};
    int status;

    if ((status = bt_tool_flags_read(&syntax, &o, argc, argv)) != 0)
        return status;
    if (o.count == 0)
        return refuse("no command; try baton key --help");
    if ((status = take_store(&o)) != 0)
        return status;
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(o.words[0], commands[i].word) == 0)
            return o.count >= 2 ? commands[i].run(&o)
                                : refuse("%s: the file is missing: baton key %s FILE, or --store "
                                         "URL",
                                         o.words[0], o.words[0]);
    return refuse("%.100s: unknown command; there are new, list and revoke", o.words[0]);
}
