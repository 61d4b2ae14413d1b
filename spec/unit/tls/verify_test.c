/* Who is trusted: servers by clients, clients by servers, and files that cannot be served with. */
#include "pair.h"

#include "tls/session.h"

static struct cert ca, other_ca, good;

static int make_all(void **state)
{
    open_cert_dir();
    make_cert(&ca, "ca", (struct wish){.is_ca = true});
    make_cert(&other_ca, "other-ca", (struct wish){.is_ca = true});
    make_cert(&good, "good", (struct wish){.issuer = &ca});
    return 0;
}

static int drop_all(void **state)
{
    free_cert(&ca);
    free_cert(&other_ca);
    free_cert(&good);
    close_cert_dir();
    return 0;
}

/* NULL: it is trusted; else why not. */
static const char *verdict(const struct cert *cert, const char *name)
{
    const char *certs[] = {cert->cert_file, NULL}, *keys[] = {cert->key_file, NULL};
    bt_tls_server_t *s = new_server((bt_tls_server_config_t){.certs = certs, .keys = keys});
    bt_tls_client_t *c = new_client((bt_tls_client_config_t){.ca = ca.cert_file});
    const char *why = NULL;

    open_pair(s, c, name, NULL);
    STEP_UNTIL(client.connects == 1 && server.handshakes == 1, step());
    if (client.connect_rc != 0)
        why = bt_tls_why(&client.s);
    assert_int_equal(client.connect_rc, why != NULL ? BT_E_TLS : 0);
    close_pair();
    bt_tls_server_free(s);
    bt_tls_client_unref(c);
    return why;
}

static void refuses(struct wish wish, const char *name, const char *expected)
{
    struct cert cert;

    make_cert(&cert, "bad", wish);
    const char *why = verdict(&cert, name);
    if (why == NULL || strstr(why, expected) == NULL)
        fail_msg("expected \"%s\", got \"%s\"", expected, why != NULL ? why : "trust");
    free_cert(&cert);
}

static void test_a_good_server(void **state)
{
    assert_null(verdict(&good, "localhost"));
    assert_null(verdict(&good, "127.0.0.1"));
}

static void test_bad_servers(void **state)
{
    refuses((struct wish){.issuer = &ca, .from_s = -7200, .to_s = -3600}, "localhost", "expired");
    refuses((struct wish){.issuer = &ca, .from_s = 3600}, "localhost", "not yet valid");
    refuses((struct wish){.issuer = &ca, .san = "DNS:elsewhere.example"}, "localhost",
            "ostname mismatch");
    refuses((struct wish){.issuer = &ca, .san = "IP:127.0.0.2"}, "127.0.0.1",
            "IP address mismatch");
    refuses((struct wish){.issuer = &ca, .san = "DNS:127.0.0.1"}, "127.0.0.1",
            "IP address mismatch"); /* an address is no name */
    refuses((struct wish){.issuer = &other_ca}, "localhost", "unable to get local issuer");
    refuses((struct wish){0}, "localhost", "self-signed");
    refuses((struct wish){.issuer = &good}, "localhost", "unable to get local issuer");
}

/* ---- files ---- */

static void cannot_serve(const char *cert, const char *key, const char *expected)
{
    const char *certs[] = {cert, NULL}, *keys[] = {key, NULL};
    const bt_tls_server_config_t config = {.certs = certs, .keys = keys};
    bt_tls_server_t *s = NULL;
    char err[512] = "";

    assert_int_equal(bt_tls_server_new(&s, &config, err, sizeof(err)), BT_E_CONFIG);
    if (strstr(err, expected) == NULL)
        fail_msg("expected \"%s\", got \"%s\"", expected, err);
}

static char *text_of(const char *file, size_t *n_p)
{
    char *text = malloc(65536);
    FILE *f = fopen(file, "r");

    assert_non_null(f);
    *n_p = fread(text, 1, 65536, f);
    fclose(f);
    return text;
}

static const char *write_file(const char *name, const char *p, size_t n, unsigned mode)
{
    static char path[2][256];
    static unsigned at;
    char *out = path[at++ % 2];

    snprintf(out, sizeof(path[0]), "%s/%s", cert_dir, name);
    FILE *f = fopen(out, "w");
    assert_non_null(f);
    fwrite(p, 1, n, f);
    fclose(f);
    chmod(out, mode);
    return out;
}

static void test_files_that_cannot_be_used(void **state)
{
    struct cert cert;
    size_t n, m;
    char *text = text_of(good.cert_file, &n), *key = text_of(good.key_file, &m);

    cannot_serve("/no/such.crt", good.key_file, "/no/such.crt: cannot be read: No such file");
    cannot_serve(good.cert_file, "/no/such.key", "/no/such.key: cannot be read: No such file");
    cannot_serve(write_file("half.crt", text, n / 2, 0600), good.key_file,
                 "half.crt: holds no certificate that can be read");
    cannot_serve(good.cert_file, write_file("half.key", key, m / 2, 0600),
                 "half.key: holds no private key that can be read");
    cannot_serve(write_file("empty.crt", "", 0, 0600), good.key_file, "empty.crt: holds no cert");
    cannot_serve(good.cert_file, good.cert_file, "holds no private key");
    cannot_serve(good.cert_file, ca.key_file, "ca.key: is not the key of the certificate");
    cannot_serve(good.cert_file, write_file("open.key", key, m, 0666),
                 "open.key: others may write this private key");
    /* a chain whose second certificate is cut */
    char *chain = malloc(n + n / 2);
    memcpy(chain, text, n);
    memcpy(chain + n, text, n / 2);
    cannot_serve(write_file("chain.crt", chain, n + n / 2, 0600), good.key_file,
                 "chain.crt: a certificate of its chain cannot be read");
    make_cert(&cert, "weak", (struct wish){.rsa_bits = 1024});
    cannot_serve(cert.cert_file, cert.key_file, "weak.crt: this certificate cannot be used");
    free_cert(&cert);
    make_cert(&cert, "usage", (struct wish){.usage = "clientAuth"});
    cannot_serve(cert.cert_file, cert.key_file, "usage.crt: this certificate is for no server");
    free_cert(&cert);
    free(chain);
    free(text);
    free(key);
}

static void test_a_key_with_a_passphrase(void **state)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/locked.key", cert_dir);
    FILE *f = fopen(path, "w");
    PEM_write_PrivateKey(f, good.key, EVP_aes_256_cbc(), NULL, 0, NULL, (void *) "word");
    fclose(f);
    chmod(path, 0600);
    cannot_serve(good.cert_file, path, "locked.key: this private key has a passphrase");
}

/* ---- reload ---- */

static void copy_file(const char *from, const char *to)
{
    size_t n;
    char *text = text_of(from, &n);
    FILE *f = fopen(to, "w");

    fwrite(text, 1, n, f);
    fclose(f);
    free(text);
}

static const char *common_name(void)
{
    static char name[64];

    X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_get0_peer_certificate(
                                  ((bt_tls_session_t *) client.s.cipher)->ssl)),
                              NID_commonName, name, sizeof(name));
    return name;
}

static const char *served_by(bt_tls_server_t *s, bt_tls_client_t *c, const char *name)
{
    const char *cn;

    open_pair(s, c, name, NULL);
    shake();
    cn = common_name();
    close_pair();
    return cn;
}

static void test_reload(void **state)
{
    struct cert first, second;
    char err[512] = "";

    make_cert(&first, "live", (struct wish){.issuer = &ca, .cn = "first"});
    make_cert(&second, "next", (struct wish){.issuer = &ca, .cn = "second"});
    const char *certs[] = {first.cert_file, NULL}, *keys[] = {first.key_file, NULL};
    bt_tls_server_t *s = new_server((bt_tls_server_config_t){.certs = certs, .keys = keys});
    bt_tls_client_t *c = new_client((bt_tls_client_config_t){.ca = ca.cert_file});
    const uint64_t stamp = bt_tls_server_stamp(s);

    assert_string_equal(served_by(s, c, "localhost"), "first");
    copy_file(second.cert_file, first.cert_file); /* the key is still the old one */
    assert_true(bt_tls_server_stamp(s) != stamp);
    assert_int_equal(bt_tls_server_reload(s, err, sizeof(err)), BT_E_CONFIG);
    assert_non_null(strstr(err, "is not the key of the certificate"));
    assert_string_equal(served_by(s, c, "localhost"), "first");
    copy_file(second.key_file, first.key_file);
    open_pair(s, c, "localhost", NULL); /* a handshake that has begun with the old ones */
    STEP_UNTIL(to_server > 0, step());
    assert_int_equal(bt_tls_server_reload(s, err, sizeof(err)), 0);
    shake();
    assert_string_equal(common_name(), "first");
    close_pair();
    assert_string_equal(served_by(s, c, "localhost"), "second");
    bt_tls_server_free(s);
    bt_tls_client_unref(c);
    free_cert(&first);
    free_cert(&second);
}

static void test_names_choose_certificates(void **state)
{
    struct cert a, b, any;

    make_cert(&a, "a", (struct wish){.issuer = &ca, .san = "DNS:a.example,DNS:localhost"});
    make_cert(&b, "b", (struct wish){.issuer = &ca, .san = "DNS:b.example"});
    make_cert(&any, "any", (struct wish){.issuer = &ca, .san = "DNS:*.wild.example"});
    const char *certs[] = {a.cert_file, b.cert_file, any.cert_file, NULL};
    const char *keys[] = {a.key_file, b.key_file, any.key_file, NULL};
    bt_tls_server_t *s = new_server((bt_tls_server_config_t){.certs = certs, .keys = keys});
    bt_tls_client_t *c = new_client((bt_tls_client_config_t){.ca = ca.cert_file});

    assert_string_equal(served_by(s, c, "a.example"), "a");
    assert_string_equal(served_by(s, c, "b.example"), "b");
    assert_string_equal(served_by(s, c, "x.wild.example"), "any");
    assert_string_equal(served_by(s, c, "localhost"), "a");
    bt_tls_server_free(s);
    bt_tls_client_unref(c);
    free_cert(&a);
    free_cert(&b);
    free_cert(&any);
}

/* ---- clients ---- */

static int server_rc_for(bt_tls_server_t *s, const struct cert *cert, bt_tls_slot_t *slot)
{
    bt_tls_client_t *c =
        new_client((bt_tls_client_config_t){.ca = ca.cert_file,
                                            .cert = cert != NULL ? cert->cert_file : NULL,
                                            .key = cert != NULL ? cert->key_file : NULL});
    bt_tls_info_t info;

    open_pair(s, c, "localhost", slot);
    server.echo = true;
    STEP_UNTIL(server.handshakes == 1, step());
    const int rc = server.handshake_rc;
    if (rc == 0) {
        STEP_UNTIL(client.connects == 1, step());
        bt_stream_write(&client.s, NULL, "x", 1);
        STEP_UNTIL(client.got_n == 1, step());
        assert_true(bt_tls_info(&server.s, &info));
        assert_true((info.peer != NULL) == (cert != NULL));
        if (cert != NULL)
            assert_string_equal(info.peer->subject, "CN=web-1");
    } else {
        STEP_UNTIL(client.connects == 1, step());
    }
    close_pair();
    bt_tls_client_unref(c);
    return rc;
}

static void test_clients_certificates(void **state)
{
    static const char san[] = "DNS:web-1.example,URI:spiffe://td/ns/a,IP:10.0.0.1,email:w@example";
    struct cert web, brief, stranger, expired, server_only;
    const char *certs[] = {good.cert_file, NULL}, *keys[] = {good.key_file, NULL};
    bt_tls_server_config_t config = {.certs = certs, .keys = keys, .client_ca = ca.cert_file};
    bt_tls_slot_t slot = {0};

    make_cert(&web, "web-1", (struct wish){.issuer = &ca, .usage = "clientAuth", .san = san});
    make_cert(&stranger, "stranger", (struct wish){.issuer = &other_ca, .usage = "clientAuth"});
    make_cert(&expired, "expired",
              (struct wish){.issuer = &ca, .usage = "clientAuth", .from_s = -9, .to_s = -5});
    bt_tls_server_t *s = new_server(config);
    assert_int_equal(server_rc_for(s, &web, &slot), 0);
    assert_int_equal(server_rc_for(s, &web, &slot), 0); /* resumed: it is known all the same */
    assert_int_equal(bt_tls_server_counts(s)->resumed, 1);
    make_cert(&brief, "web-1", (struct wish){.issuer = &ca, .usage = "clientAuth", .to_s = 2});
    bt_tls_slot_fini(&slot);
    assert_int_equal(server_rc_for(s, &brief, &slot), 0);
    while (X509_cmp_current_time(X509_get0_notAfter(brief.x509)) > 0)
        usleep(50000);
    slot.generation = 0;                                         /* another client's: its first */
    assert_int_equal(server_rc_for(s, &brief, &slot), BT_E_TLS); /* though it has a ticket */
    assert_int_equal(server_rc_for(s, NULL, NULL), BT_E_TLS);
    assert_int_equal(server_rc_for(s, &stranger, NULL), BT_E_TLS);
    assert_int_equal(server_rc_for(s, &expired, NULL), BT_E_TLS);
    assert_int_equal(bt_tls_server_counts(s)->failed[BT_TLS_FAILED_CERTIFICATE], 4);
    make_cert(&server_only, "server-only", (struct wish){.issuer = &ca, .usage = "serverAuth"});
    char err[256];
    bt_tls_client_t *c = NULL;
    assert_int_equal(bt_tls_client_get(&c,
                                       &(bt_tls_client_config_t){.ca = ca.cert_file,
                                                                 .cert = server_only.cert_file,
                                                                 .key = server_only.key_file},
                                       err, sizeof(err)),
                     BT_E_CONFIG);
    assert_non_null(strstr(err, "is for no client"));
    bt_tls_server_free(s);
    config.client_may_be_nobody = true;
    s = new_server(config);
    assert_int_equal(server_rc_for(s, NULL, NULL), 0);
    assert_int_equal(server_rc_for(s, &stranger, NULL), BT_E_TLS);
    bt_tls_server_free(s);
    bt_tls_slot_fini(&slot);
    free_cert(&web);
    free_cert(&brief);
    free_cert(&stranger);
    free_cert(&expired);
    free_cert(&server_only);
}

static void test_allowed_names(void **state)
{
    static const char san[] = "DNS:web-1.example,URI:spiffe://td/ns/a,IP:10.0.0.1,email:w@example";
    static const struct {
        const char *pattern;
        bool is_allowed;
    } rows[] = {{"CN:web-1", true},          {"CN:web", false},
                {"CN:web*", true},           {"DNS:web-1.example", true},
                {"URI:spiffe://td/*", true}, {"URI:spiffe://other/*", false},
                {"IP:10.0.0.1", true},       {"email:w@example", true},
                {"subject:CN=web-1", true},  {"DNS:web-1", false}};
    struct cert web;
    const char *certs[] = {good.cert_file, NULL}, *keys[] = {good.key_file, NULL};
    const char *allow[] = {NULL, NULL};
    bt_tls_server_config_t config = {
        .certs = certs, .keys = keys, .client_ca = ca.cert_file, .client_allow = allow};

    make_cert(&web, "web-1", (struct wish){.issuer = &ca, .usage = "clientAuth", .san = san});
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        allow[0] = rows[i].pattern;
        assert_null(bt_tls_pattern_error(allow[0]));
        bt_tls_server_t *s = new_server(config);
        if ((server_rc_for(s, &web, NULL) == 0) != rows[i].is_allowed)
            fail_msg("%s", allow[0]);
        bt_tls_server_free(s);
    }
    assert_non_null(bt_tls_pattern_error("web-1"));
    assert_non_null(bt_tls_pattern_error("CN:"));
    free_cert(&web);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(test_a_good_server),
        WITH_LOOP(test_bad_servers),
        WITH_LOOP(test_files_that_cannot_be_used),
        WITH_LOOP(test_a_key_with_a_passphrase),
        WITH_LOOP(test_reload),
        WITH_LOOP(test_names_choose_certificates),
        WITH_LOOP(test_clients_certificates),
        WITH_LOOP(test_allowed_names),
    };
    return cmocka_run_group_tests(tests, make_all, drop_all);
}
