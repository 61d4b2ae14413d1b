/* redis_server.h - real redis-servers (or valkey-servers) for specs: started on a free port, ended by pid.
 *
 * BATON_REDIS_SERVER names the program; else redis-server, else valkey-server from PATH. A server dies with the process that started it.
 */
#ifndef SPEC_UNIT_STATE_REDIS_SERVER_H
#define SPEC_UNIT_STATE_REDIS_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <hiredis/hiredis.h>

#define REDIS_WORDS_MAX 32

typedef struct redis_server {
    pid_t pid; /* 0 = does not run */
    unsigned port;
    char dir[64];                       /* of its own */
    char socket[96];                    /* unix */
    char password[32];                  /* "" = none; redis_ask sends it */
    const char *words[REDIS_WORDS_MAX]; /* as given */
    bool is_sentinel;
} redis_server_t;

/* NULL where there is none; the reason has been printed, and main returns 77. */
const char *redis_program(void);
/* Nobody's now, and none that the kernel hands out to those who connect. */
unsigned redis_free_port(void);
/* words: more of its command line ("--maxmemory", "1mb"), NULL at the end, or NULL; they must outlive the server. Returns when it answers. */
void redis_start(redis_server_t *server, const char *const *words);
/* config: the text of its file. */
void redis_start_sentinel(redis_server_t *server, const char *config);
void redis_stop(redis_server_t *server);  /* SIGKILL; the folder stays */
void redis_again(redis_server_t *server); /* after stop: same port, same words */
void redis_freeze(redis_server_t *server);
void redis_thaw(redis_server_t *server);
void redis_end(redis_server_t *server); /* stop, and the folder goes */
/* One command on a connection of its own; the caller frees the reply. Fails the test when there is none. */
redisReply *redis_ask(const redis_server_t *server, const char *fmt, ...);
/* The same; frees the reply, which must be no error. */
void redis_send(const redis_server_t *server, const char *fmt, ...);

#endif
