/* What a certificate's holder is called: two holders are never one. */
#include "tls/peer.h"
#include "unit.h"

#include <string.h>

#include "certs.h"

static int open_dir(void **state)
{
    open_cert_dir();
    return 0;
}

static int close_dir(void **state)
{
    close_cert_dir();
    return 0;
}

static void test_what_it_is_called(void **state)
{
    static const struct {
        struct wish wish;
        const char *id, *name, *organization;
    } rows[] = {
        {{.cn = "web", .san = "DNS:a.example"}, "subject:CN=web", "web", NULL},
        {{.cn = "web", .organization = "One", .san = ""}, "subject:O=One,CN=web", "web", "One"},
        {{.cn = "web", .organization = "Two", .san = ""}, "subject:O=Two,CN=web", "web", "Two"},
        /* SPIFFE: all have one subject */
        {{.cn = "", .organization = "SPIRE", .san = "DNS:a.example,URI:spiffe://td/a"},
         "URI:spiffe://td/a",
         "spiffe://td/a",
         "SPIRE"},
        {{.cn = "", .organization = "SPIRE", .san = "URI:spiffe://td/b,URI:spiffe://td/a"},
         "URI:spiffe://td/b",
         "spiffe://td/b",
         "SPIRE"},
        {{.cn = "", .organization = "One", .san = "DNS:a.example"},
         "DNS:a.example",
         "a.example",
         "One"},
        {{.cn = "", .san = "email:a@example"}, "email:a@example", "a@example", NULL},
        {{.cn = "", .organization = "One", .san = ""}, "subject:O=One", "O=One", "One"},
        {{.cn = "", .san = ""}, "subject:-", "-", NULL},
        {{.cn = "O:One", .san = ""}, "subject:CN=O:One", "O:One", NULL}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static const char *const of_one[] = {"O:One", NULL};
        struct cert cert;
        make_cert(&cert, "peer", rows[i].wish);
        bt_tls_peer_t *peer = bt_tls_peer_new(cert.x509);
        assert_non_null(peer);
        assert_string_equal(bt_tls_peer_id(peer), rows[i].id);
        assert_string_equal(bt_tls_peer_name(peer), rows[i].name);
        const char *organization = bt_tls_peer_organization(peer);
        assert_string_equal(organization != NULL ? organization : "none",
                            rows[i].organization != NULL ? rows[i].organization : "none");
        assert_int_equal(bt_tls_peer_is_one_of(peer, of_one),
                         organization != NULL && strcmp(organization, "One") == 0);
        bt_tls_peer_free(peer);
        free_cert(&cert);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_it_is_called)};

    return cmocka_run_group_tests(tests, open_dir, close_dir);
}
