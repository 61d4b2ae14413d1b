/* Where traces go. */
#include "config/config_impl.h"

#include "base/err.h"

#include <string.h>

#define URL_MAX_BYTES 1024

static bool has_host(const char *url)
{
    const char *host = strstr(url, "://") + 3;

    return *host == '[' ? strchr(host, ']') > host + 1 : strcspn(host, "/:?") > 0;
}

int bt_config_check_traces(const bt_config_t *c, char *err, size_t err_size)
{
    const char *url = c->trace_endpoint;

    if (url == NULL)
        return c->trace_headers_file == NULL && c->trace_ca_file == NULL
                   ? 0
                   : bt_err_refuse(err, err_size, "%s: traces go nowhere: add --trace-endpoint URL",
                                   c->trace_headers_file != NULL ? "--trace-headers-file"
                                                                 : "--trace-ca-file");
    if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) ||
        strlen(url) > URL_MAX_BYTES || strpbrk(url, " \t\r\n@#") != NULL || !has_host(url))
        return bt_err_refuse(
            err, err_size,
            "--trace-endpoint: expected http://HOST:PORT or https://HOST:PORT, got "
            "\"%.120s\"; a collector listens for OTLP over HTTP at 4318, not at "
            "4317, which is gRPC's",
            url);
    if (c->trace_service_name != NULL && c->trace_service_name[0] == '\0')
        return bt_err_refuse(err, err_size, "--trace-service-name: expected a name, got none");
    return 0;
}
