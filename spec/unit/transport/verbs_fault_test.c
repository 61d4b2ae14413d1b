/* What happens to rooms when the other process, or the wire, is no more: two processes in the emulated machine, a prefill agent on rxe0 here and a decode agent
 * on rxe1 in a child. The control connection is on lo, so cutting the wire leaves it whole.
 *
 * Both must see the room fail within their deadlines and get its pages back. Argument: kill, stop, black or down. */
#include "transport/baton_kv.h"

#include "base/clock.h"
#include "transport/backends/backend.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 2048u
#define PAGE_BYTES 16384u
#define DEAD_MS 2000u
#define RELEASE_MS 10000u
#define LIMIT_MS 20000u

struct side {
    bt_kv_agent_t *agent;
    bt_kv_layout_t layout;
    uint32_t pages[PAGES];
};

static void die(const char *what)
{
    fprintf(stderr, "FAILED: %s\n", what);
    exit(1);
}

static void side_open(struct side *side, const char *name, const char *device)
{
    bt_kv_config_t config = {.name = name,
                             .backends = BT_KV_VERBS,
                             .heartbeat_ms = 200,
                             .dead_ms = DEAD_MS,
                             .release_ms = RELEASE_MS,
                             .rdma_devices = device};
    bt_kv_buffer_t buffer = {.stride = PAGE_BYTES, .bytes = PAGE_BYTES};
    char err[300];
    void *p;

    if (bt_kv_agent_open(&side->agent, &config, err, sizeof(err)) != 0)
        die(err);
    if (bt_kv_pool_alloc(side->agent, (size_t) PAGES * PAGE_BYTES, &p, &buffer.region) != 0 ||
        bt_kv_layout_add(side->agent, &buffer, 1, PAGES, &side->layout) != 0)
        die("no pool");
    for (uint32_t i = 0; i < PAGES; i++)
        side->pages[i] = i * 389 % PAGES;
}

static enum bt_kv_state wait_for(struct side *side, bt_kv_room_t room, enum bt_kv_state state)
{
    uint64_t end_ms = bt_clock_ms() + LIMIT_MS;
    enum bt_kv_state now;

    while ((now = bt_kv_poll(side->agent, room)) != state && now != BT_KV_FAILED &&
           now != BT_KV_SUCCESS) {
        if (bt_clock_ms() > end_ms)
            die("a state never came");
        usleep(1000);
    }
    return now;
}

static void must_fail(struct side *side, const char *who, bt_kv_room_t room, uint64_t since_ms)
{
    char text[300];

    if (wait_for(side, room, BT_KV_FAILED) != BT_KV_FAILED)
        die("the room did not fail");
    bt_kv_room_error(side->agent, room, text, sizeof(text));
    uint64_t failed_ms = bt_clock_ms();
    while (bt_kv_room_release(side->agent, room) == 0) {
        if (bt_clock_ms() > failed_ms + LIMIT_MS)
            die("its pages were never released");
        usleep(1000);
    }
    printf("%s: failed after %u ms, released %u ms later: %s\n", who,
           (unsigned) (failed_ms - since_ms), (unsigned) (bt_clock_ms() - failed_ms), text);
    fflush(stdout);
    if (failed_ms - since_ms > DEAD_MS + 5000 || text[0] == '\0')
        die("too late, or for no reason");
}

/* The child: decode. Says 'r' when its room is receiving, and ends when the room has ended. */
static int decode(const char *how, int port_fd, int say_fd)
{
    struct side side;
    uint16_t port;
    bt_kv_room_t room = 0;

    if (read(port_fd, &port, sizeof(port)) != sizeof(port))
        return 1;
    side_open(&side, "decode", "rxe1");
    bt_kv_source_t source = {.host = "127.0.0.1", .port = port};
    bt_kv_recv_t recv = {.room = 7,
                         .layout = side.layout,
                         .pages = side.pages,
                         .page_count = PAGES,
                         .sources = &source,
                         .source_count = 1};
    if (bt_kv_recv_open(side.agent, &recv, &room) != 0)
        die("no room");
    if (wait_for(&side, room, BT_KV_WAITING_FOR_INPUT) == BT_KV_FAILED)
        die("the room failed at once");
    if (write(say_fd, "r", 1) != 1)
        return 1;
    /* The device writes on while the process stands still: one that goes on may find everything there, and right. */
    if (strcmp(how, "stop") == 0 && wait_for(&side, room, BT_KV_FAILED) == BT_KV_SUCCESS)
        printf("decode: had all of it when it went on\n");
    else
        must_fail(&side, "decode", room, bt_clock_ms());
    bt_kv_agent_close(side.agent);
    return 0;
}

static void strike(const char *how, pid_t child)
{
    int rc = 0;

    if (strcmp(how, "kill") == 0)
        rc = kill(child, SIGKILL);
    else if (strcmp(how, "stop") == 0)
        rc = kill(child, SIGSTOP);
    else if (strcmp(how, "black") == 0)
        rc = system("tc qdisc replace dev va root netem loss 100%");
    else
        rc = system("ip link set va down");
    if (rc != 0)
        die("could not strike");
}

static void prefill(const char *how, pid_t child, int port_fd, int hear_fd)
{
    struct side side;
    bt_kv_room_t room = 0;
    char c;
    int status;

    side_open(&side, "prefill", "rxe0");
    uint16_t port = bt_kv_agent_port(side.agent);
    bt_kv_send_spec_t spec = {.room = 7, .layout = side.layout};
    if (write(port_fd, &port, sizeof(port)) != sizeof(port) ||
        bt_kv_send_open(side.agent, &spec, &room) != 0 || read(hear_fd, &c, 1) != 1)
        die("no room");
    if (wait_for(&side, room, BT_KV_WAITING_FOR_INPUT) == BT_KV_FAILED)
        die("the room failed at once");
    bt_kv_chunk_t first = {.pages = side.pages, .page_count = PAGES / 2};
    bt_kv_chunk_t last = {
        .first = PAGES / 2, .pages = side.pages + PAGES / 2, .page_count = PAGES / 2, .last = true};
    if (bt_kv_send(side.agent, room, &first) != 0)
        die("nothing is sent");
    strike(how, child);
    /* However fast the first half went, this one is late. Refused when the room has failed by now. */
    (void) bt_kv_send(side.agent, room, &last);
    must_fail(&side, "prefill", room, bt_clock_ms());
    kill(child, SIGCONT); /* a stopped one finds the link lost, and its memory revoked */
    if (waitpid(child, &status, 0) != child)
        die("no child");
    if (strcmp(how, "kill") != 0 && status != 0)
        die("decode did not end well");
    bt_kv_agent_close(side.agent);
}

int main(int argc, char **argv)
{
    int port[2], say[2];

    if (bt_kv_verbs_ops() == NULL) {
        puts("skipped: no RDMA device here");
        return 77;
    }
    if (argc != 2 || pipe(port) != 0 || pipe(say) != 0)
        return 2;
    pid_t child = fork();
    if (child == 0)
        _exit(decode(argv[1], port[0], say[1]));
    prefill(argv[1], child, port[1], say[0]);
    return 0;
}
