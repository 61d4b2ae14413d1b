#include "identity/base64url.h"

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

long bt_base64url_decode(bt_str_t text, unsigned char *out, size_t size)
{
    unsigned bits = 0, kept = 0;
    size_t n = 0;

    if (text.n % 4 == 1 || text.n / 4 * 3 + (text.n % 4) * 3 / 4 > size)
        return -1;
    for (size_t i = 0; i < text.n; i++) {
        const int value = digit(text.p[i]);
        if (value < 0)
            return -1;
        bits = (bits << 6 | (unsigned) value) & 0xffff;
        kept += 6;
        if (kept >= 8) {
            kept -= 8;
            out[n++] = (unsigned char) (bits >> kept);
        }
    }
    /* what is left must be zero, or two texts would be one token */
    return (bits & ((1U << kept) - 1)) == 0 ? (long) n : -1;
}
