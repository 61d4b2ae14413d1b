/* EVP allocates a state for every hash (OpenSSL 3.0 to 3.5, whatever is fetched and kept beforehand), and this is on the path of every
 * request. The older functions hash in a state on the stack, by the same code. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "identity/sha256.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

void bt_sha256_of(bt_str_t a, bt_str_t b, unsigned char out[BT_SHA256_BYTES])
{
    SHA256_CTX state;

    SHA256_Init(&state);
    SHA256_Update(&state, a.p, a.n);
    SHA256_Update(&state, b.p, b.n);
    SHA256_Final(out, &state);
    OPENSSL_cleanse(&state, sizeof state);
}

bool bt_sha256_same(const void *a, const void *b, size_t n)
{
    return CRYPTO_memcmp(a, b, n) == 0;
}
