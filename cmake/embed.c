/* embed.c - turns files into a C file with their bytes.
 *
 * Usage: bt_embed OUTPUT TABLE PATH...   (TABLE is the array's name; paths are kept as the names in it)
 *
 * A string literal per line keeps the generated file readable; every byte outside printable ASCII is a three-digit
 * octal escape, which cannot swallow the character after it as a hexadecimal one would.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *path)
{
    fprintf(stderr, "bt_embed: cannot %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static void put_byte(FILE *out, int byte)
{
    if (byte == '\n')
        fputs("\\n\"\n        \"", out);
    else if (byte < 0x20 || byte > 0x7e || byte == '"' || byte == '\\' || byte == '?')
        fprintf(out, "\\%03o", (unsigned) byte);
    else
        fputc(byte, out);
}

static void put_file(FILE *out, const char *path)
{
    FILE *in = fopen(path, "rb");
    unsigned long size = 0;
    int byte;

    if (in == NULL)
        die("read", path);
    fprintf(out, "    {\"%s\",\n        \"", path);
    while ((byte = fgetc(in)) != EOF) {
        put_byte(out, byte);
        size++;
    }
    if (ferror(in))
        die("read", path);
    fclose(in);
    fprintf(out, "\",\n        %lu},\n", size);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: bt_embed OUTPUT TABLE PATH...\n", stderr);
        return 2;
    }
    FILE *out = fopen(argv[1], "wb");
    if (out == NULL)
        die("write", argv[1]);
    fputs("/* Generated at build time by cmake/embed.c. */\n#include \"script/vm/embedded.h\"\n\n",
          out);
    fprintf(out, "extern const struct bt_embedded %s[];\nconst struct bt_embedded %s[] = {\n",
            argv[2], argv[2]);
    for (int i = 3; i < argc; i++)
        put_file(out, argv[i]);
    fputs("    {NULL, NULL, 0},\n};\n", out);
    if (fclose(out) != 0)
        die("write", argv[1]);
    return 0;
}
