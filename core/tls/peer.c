/* peer.c - a certificate's names as text. */
#include "tls/peer.h"

#include <arpa/inet.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"subject:", "CN:", "O:", "DNS:", "URI:", "IP:", "email:", NULL};

static bool is_clean(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char) p[i] < 0x20 || p[i] == 0x7f)
            return false;
    return n > 0;
}

static bool add(bt_tls_peer_t *peer, const char *kind, const char *p, size_t n)
{
    size_t kind_n = strlen(kind);

    if (peer->count == BT_TLS_PEER_NAMES_MAX || !is_clean(p, n))
        return true;
    char *name = malloc(kind_n + n + 1);
    if (name == NULL)
        return false;
    memcpy(name, kind, kind_n);
    memcpy(name + kind_n, p, n);
    name[kind_n + n] = '\0';
    peer->names[peer->count++] = name;
    return true;
}

static bool add_subject(bt_tls_peer_t *peer, X509 *certificate)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *p;
    bool is_done = false;

    if (bio == NULL)
        return false;
    X509_NAME_print_ex(bio, X509_get_subject_name(certificate), 0,
                       XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB);
    long n = BIO_get_mem_data(bio, &p);
    is_done = add(peer, kinds[0], n > 0 ? p : "-", n > 0 ? (size_t) n : 1);
    BIO_free(bio);
    if (is_done && peer->count > 0)
        peer->subject = peer->names[0] + strlen(kinds[0]);
    return is_done;
}

/* nid: of the subject's parts. */
static bool add_parts(bt_tls_peer_t *peer, X509 *certificate, int nid, const char *kind)
{
    X509_NAME *subject = X509_get_subject_name(certificate);
    bool is_done = true;
    int at = -1;

    while (is_done && (at = X509_NAME_get_index_by_NID(subject, nid, at)) >= 0) {
        unsigned char *p = NULL;
        int n = ASN1_STRING_to_UTF8(&p, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
        if (n > 0)
            is_done = add(peer, kind, (const char *) p, (size_t) n);
        OPENSSL_free(p);
    }
    return is_done;
}

static bool add_ip(bt_tls_peer_t *peer, const ASN1_OCTET_STRING *ip)
{
    char text[INET6_ADDRSTRLEN];
    int n = ASN1_STRING_length(ip);

    if (n != 4 && n != 16)
        return true;
    if (inet_ntop(n == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(ip), text, sizeof(text)) ==
        NULL)
        return true;
    return add(peer, "IP:", text, strlen(text));
}

static bool add_name(bt_tls_peer_t *peer, const GENERAL_NAME *name)
{
    const char *kind = name->type == GEN_DNS     ? "DNS:"
                       : name->type == GEN_URI   ? "URI:"
                       : name->type == GEN_EMAIL ? "email:"
                                                 : NULL;

    if (name->type == GEN_IPADD)
        return add_ip(peer, name->d.iPAddress);
    if (kind == NULL)
        return true;
    return add(peer, kind, (const char *) ASN1_STRING_get0_data(name->d.ia5),
               (size_t) ASN1_STRING_length(name->d.ia5));
}

static bool add_alternatives(bt_tls_peer_t *peer, X509 *certificate)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    bool is_done = true;

    for (int i = 0; is_done && i < sk_GENERAL_NAME_num(names); i++)
        is_done = add_name(peer, sk_GENERAL_NAME_value(names, i));
    GENERAL_NAMES_free(names);
    return is_done;
}

bt_tls_peer_t *bt_tls_peer_new(X509 *certificate)
{
    bt_tls_peer_t *peer = calloc(1, sizeof(*peer));

    if (peer == NULL)
        return NULL;
    peer->subject = "";
    if (add_subject(peer, certificate) && add_parts(peer, certificate, NID_commonName, "CN:") &&
        add_parts(peer, certificate, NID_organizationName, "O:") &&
        add_alternatives(peer, certificate))
        return peer;
    bt_tls_peer_free(peer);
    return NULL;
}

void bt_tls_peer_free(bt_tls_peer_t *peer)
{
    if (peer == NULL)
        return;
    for (unsigned i = 0; i < peer->count; i++)
        free(peer->names[i]);
    free(peer);
}

static bool matches(const char *pattern, const char *name)
{
    size_t n = strlen(pattern);

    if (pattern[n - 1] == '*')
        return strncmp(pattern, name, n - 1) == 0;
    return strcmp(pattern, name) == 0;
}

bool bt_tls_peer_is_one_of(const bt_tls_peer_t *peer, const char *const *patterns)
{
    for (; *patterns != NULL; patterns++)
        for (unsigned i = 0; i < peer->count; i++)
            if (matches(*patterns, peer->names[i]))
                return true;
    return false;
}

/* ---- what it is called ---- */

static const char *first_of(const bt_tls_peer_t *peer, const char *kind)
{
    for (unsigned i = 0; i < peer->count; i++)
        if (strncmp(peer->names[i], kind, strlen(kind)) == 0)
            return peer->names[i];
    return NULL;
}

static const char *first_other(const bt_tls_peer_t *peer)
{
    for (unsigned i = 0; i < peer->count; i++)
        if (strncmp(peer->names[i], "subject:", 8) != 0 && strncmp(peer->names[i], "O:", 2) != 0)
            return peer->names[i];
    return peer->count > 0 ? peer->names[0] : "subject:-";
}

const char *bt_tls_peer_id(const bt_tls_peer_t *peer)
{
    const char *uri = first_of(peer, "URI:");

    if (uri != NULL)
        return uri;
    return first_of(peer, "CN:") != NULL ? peer->names[0] : first_other(peer);
}

const char *bt_tls_peer_name(const bt_tls_peer_t *peer)
{
    const char *name = first_of(peer, "URI:");

    if (name == NULL)
        name = first_of(peer, "CN:");
    if (name == NULL)
        name = first_other(peer);
    return strchr(name, ':') + 1;
}

const char *bt_tls_peer_organization(const bt_tls_peer_t *peer)
{
    const char *name = first_of(peer, "O:");

    return name != NULL ? name + 2 : NULL;
}

const char *bt_tls_pattern_error(const char *pattern)
{
    for (const char *const *kind = kinds; *kind != NULL; kind++)
        if (strncmp(pattern, *kind, strlen(*kind)) == 0 && pattern[strlen(*kind)] != '\0')
            return NULL;
    return "begins with none of subject:, CN:, O:, DNS:, URI:, IP:, email:";
}

const char *bt_tls_verify_text(long result)
{
    if (result == X509_V_ERR_APPLICATION_VERIFICATION)
        return "its certificate is none of those that are allowed";
    return X509_verify_cert_error_string(result);
}
