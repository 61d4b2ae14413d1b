/* main.c - baton-sim: options, loop, signals. */
#include "base/err.h"
#include "base/rand.h"
#include "base/text.h"
#include "expect.h"
#include "kv.h"
#include "routes.h"
#include "worker.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct program {
    bt_loop_t loop;
    sim_options_t options;
    sim_world_t world;
    uv_signal_t signals[2];
    bt_timer_t limit;
    bool ending;
};

static void on_closed(void *arg)
{
    struct program *p = arg;

    bt_loop_stop(&p->loop);
}

static void end(struct program *p)
{
    if (p->ending)
        return;
    p->ending = true;
    bt_timer_stop(&p->limit);
    uv_close((uv_handle_t *) &p->signals[0], NULL);
    uv_close((uv_handle_t *) &p->signals[1], NULL);
    sim_world_close(&p->world, on_closed, p);
}

static void on_signal(uv_signal_t *signal, int number)
{
    (void) number;
    end(signal->data);
}

static void on_limit(bt_timer_t *timer)
{
    end(bt_container_of(timer, struct program, limit));
}

static void print_ready(const struct program *p, FILE *out)
{
    for (unsigned i = 0; i < p->world.worker_count; i++) {
        const sim_worker_t *w = p->world.workers[i];
        unsigned second = w->bootstrap_server != NULL ? w->bootstrap_port : w->side_port;
        fprintf(out,
                strchr(w->options.host, ':') != NULL ? "worker %s %s http://[%s]:%u"
                                                     : "worker %s %s http://%s:%u",
                w->options.name, sim_role_name(w->options.role), w->options.host, w->port);
        fprintf(out, " bootstrap=%u", second);
        if (w->kv != NULL)
            fprintf(out, " agent=%u", sim_kv_port(w->kv));
        fputc('\n', out);
    }
    fputs("ready\n", out);
    fflush(out);
}

/* Under a name of its own first, so that whoever waits for the file never reads half of it. */
static void write_ready_file(const struct program *p)
{
    char temporary[4096];
    FILE *f;

    if (p->options.ready_file == NULL)
        return;
    snprintf(temporary, sizeof(temporary), "%s.new", p->options.ready_file);
    f = fopen(temporary, "w");
    if (f == NULL) {
        fprintf(stderr, "baton-sim: --ready-file %s cannot be written\n", p->options.ready_file);
        return;
    }
    print_ready(p, f);
    fclose(f);
    rename(temporary, p->options.ready_file);
}

static void start_signals(struct program *p)
{
    static const int numbers[] = {SIGTERM, SIGINT};

    for (unsigned i = 0; i < 2; i++) {
        uv_signal_init(&p->loop.uv, &p->signals[i]);
        p->signals[i].data = p;
        uv_signal_start(&p->signals[i], on_signal, numbers[i]);
    }
    bt_timer_init(&p->loop, &p->limit, on_limit);
    if (p->options.max_seconds > 0)
        bt_timer_start(&p->limit, (uint64_t) (p->options.max_seconds * 1000) + 1);
}

static int run(struct program *p)
{
    char error[256] = "";
    int rc = bt_loop_init(&p->loop, 0);

    if (rc == 0) {
        start_signals(p);
        rc = sim_world_open(&p->world, &p->loop, &p->options, &sim_servers, error, sizeof(error));
    }
    if (rc != 0) {
        fprintf(stderr, "baton-sim: %s\n", error[0] != '\0' ? error : bt_err_text(rc));
        return 2;
    }
    print_ready(p, stdout);
    write_ready_file(p);
    bt_loop_run(&p->loop);
    sim_world_fini(&p->world);
    bt_loop_fini(&p->loop);
    return 0;
}

static int expect(const sim_options_t *options)
{
    bt_text_t text;

    bt_text_init(&text);
    sim_expect(options, &text);
    printf("%.*s\n", BT_STR_ARG(bt_text_str(&text)));
    bt_text_fini(&text);
    return 0;
}

int main(int argc, char **argv)
{
    static struct program program;
    char error[256];
    int rc = sim_options_parse(argc, argv, &program.options, error, sizeof(error));

    signal(SIGPIPE, SIG_IGN);
    if (rc == 1) {
        sim_options_help(stdout);
        rc = 0;
    } else if (rc == 2) {
        fprintf(stderr, "baton-sim: %s\n", error);
    } else {
        bt_rand_seed(program.options.seed);
        rc = program.options.expect ? expect(&program.options) : run(&program);
    }
    sim_options_fini(&program.options);
    return rc;
}
