/* The suite over a real server: by TCP, by its unix socket, and with a password, a user and a database. */
#include "redis_server.h"
#include "suite.h"

#include <stdio.h>

int main(void)
{
    redis_server_t server;
    char url[160];
    bt_store_config_t config = {.url = url, .op_ms = 20000, .connect_ms = 20000};

    if (redis_program() == NULL)
        return 77;
    redis_start(&server, NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", server.port);
    int failed = suite_run("redis by tcp", &config);
    snprintf(url, sizeof(url), "unix://%s?db=3", server.socket);
    failed += suite_run("redis by unix socket", &config);
    redis_send(&server, "ACL SETUSER baton on >pa@ss ~baton:* +@read +@write +@connection "
                        "+@scripting +time +select");
    snprintf(url, sizeof(url), "redis://baton:pa%%40ss@localhost:%u/5", server.port);
    failed += suite_run("redis by name, user and database", &config);
    redis_end(&server);
    return failed;
}
