/* Three lists share the screen: workers, live requests, and those that have just ended; Tab moves between them. The picture is made anew
 * each second from what the gateway says then, so nothing here can be older than what is on the screen.
 */
#include "tools/top.h"

#include "base/clock.h"
#include "base/json.h"
#include "tools/fleet.h"
#include "tools/top_screen.h"

#include <inttypes.h>
#include <stdio.h>

#define PERIOD_MS 1000
#define NAME_MAX 160
#define ROWS_MAX 256 /* of a list */

enum list { WORKERS, LIVE, ENDED, LISTS };
static const char *const titles[LISTS] = {"WORKERS", "LIVE REQUESTS", "JUST ENDED"};

typedef struct top {
    const fleet_tool_t *tool;
    enum list list;
    unsigned chosen[LISTS], counts[LISTS];
    char names[ROWS_MAX][NAME_MAX]; /* of the list that is shown */
    bool are_draining[ROWS_MAX];
    char message[512];
    uint64_t answers, failed, events, at_ms; /* of the picture before */
    char rates[128];
} top_t;

void bt_top_help(bt_text_t *out)
{
    bt_text_puts(
        out, "usage: baton top [flags]\n\n"
             "Shows what a gateway does, live in this terminal: workers, live requests, and those "
             "that have "
             "just ended.\n"
             "Where stdin or stdout is no terminal it prints one snapshot.\n\n"
             "  --admin URL               the gateway's admin listener (http://127.0.0.1:29000)\n"
             "  --admin-api-key KEY       its key; or BATON_ADMIN_API_KEY in the environment, "
             "which others "
             "cannot read in ps\n"
             "  --tls-ca FILE             an https:// gateway is verified by these authorities "
             "(PEM; the "
             "system's)\n"
             "  --tls-cert FILE --tls-key FILE   our certificate, where it asks for one\n"
             "  --timeout SECS            of one call (10)\n\n"
             "Keys\n"
             "  Tab                       the next list\n"
             "  up, down, k, j            choose; page up, page down\n"
             "  d                         drain the chosen worker, or undrain it; it asks first\n"
             "  c                         cancel the chosen request; it asks first\n"
             "  e, Enter                  explain the chosen request, when it has ended\n"
             "  q                         leave\n");
}

/* ---- calls ---- */

/* 0; else t->message says why not. */
static int call(top_t *t, enum bt_method method, const char *path, fleet_reply_t *reply)
{
    int rc = fleet_call(t->tool, t->tool->admin, method, path, BT_STR(""), t->tool->timeout_ms,
                        reply, t->message, sizeof t->message);

    if (rc == 0 && (reply->status < 200 || reply->status > 299)) {
        fleet_why(reply, t->message, sizeof t->message);
        rc = -1;
    }
    return rc;
}

static void put_path(bt_text_t *path, const char *before, const char *name, const char *after)
{
    bt_text_init(path);
    bt_text_puts(path, before);
    fleet_path_put(path, name);
    bt_text_puts(path, after);
}

/* ---- rows ---- */

static void put_cell(bt_text_t *out, bt_str_t row, const char *key, unsigned width)
{
    char text[NAME_MAX];

    fleet_get(row, key, text, sizeof text);
    const bt_str_t cut = bt_str_cut(bt_str(text), width);
    bt_text_printf(out, "%-*.*s ", (int) width, BT_STR_ARG(cut));
}

static void put_way(bt_text_t *out, bt_str_t row)
{
    char from[64], to[64], way[140];

    fleet_get(row, "prefill", from, sizeof from);
    fleet_get(row, "decode", to, sizeof to);
    if (from[0] == '\0' && to[0] == '\0')
        fleet_get(row, "worker", way, sizeof way);
    else
        snprintf(way, sizeof way, "%s>%s", from, to);
    bt_text_printf(out, "%-17.17s ", way);
}

/* "prefill":[requests,tokens] and so on: all phases together. */
static void sum_load(bt_str_t row, uint64_t sum[2])
{
    static const char *const phases[] = {"prefill", "decode"};
    const bt_str_t all = fleet_get_raw(row, "requests");
    bt_json_cursor_t c;
    bt_json_item_t item;
    int64_t value;

    for (unsigned i = 0; i < 2; i++) {
        if (bt_json_array(&c, fleet_get_raw(all, phases[i])) != 0)
            continue;
        for (unsigned k = 0; k < 2 && bt_json_next(&c, &item) > 0; k++)
            if (bt_json_i64(item.value, &value) == 0 && value > 0)
                sum[k] += (uint64_t) value;
    }
}

static void put_worker(top_t *t, bt_str_t row, unsigned n, bt_text_t *out)
{
    uint64_t sum[2] = {0, 0};
    char state[32], breaker[16];

    fleet_get(row, "name", t->names[n], NAME_MAX);
    t->are_draining[n] = fleet_get_bool(row, "draining");
    fleet_get(row, "why_not", state, sizeof state);
    fleet_get(row, "breaker", breaker, sizeof breaker);
    if (state[0] == '\0')
        snprintf(state, sizeof state, "%s", strcmp(breaker, "closed") == 0 ? "up" : breaker);
    sum_load(row, sum);
    put_cell(out, row, "name", 16);
    put_cell(out, row, "role", 7);
    put_cell(out, row, "zone", 8);
    bt_text_printf(out, "%-13.13s %5" PRIu64 " %8" PRIu64 " ", state, sum[0], sum[1]);
    put_cell(out, row, "kv", 5);
    put_cell(out, row, "tpot_ms", 7);
}

static void put_live(top_t *t, bt_str_t row, unsigned n, bt_text_t *out)
{
    fleet_get(row, "id", t->names[n], NAME_MAX);
    put_cell(out, row, "id", 24);
    put_cell(out, row, "model", 12);
    put_way(out, row);
    put_cell(out, row, "step", 9);
    bt_text_printf(out, "%9" PRIu64 " ms", fleet_get_number(row, "age_ms"));
}

static void put_ended(top_t *t, bt_str_t row, unsigned n, bt_text_t *out)
{
    fleet_get(row, "id", t->names[n], NAME_MAX);
    put_cell(out, row, "id", 24);
    put_cell(out, row, "model", 12);
    put_way(out, fleet_get_raw(row, "plan"));
    put_cell(out, row, "status", 6);
    put_cell(out, row, "error", 16);
}

static void put_head(enum list list, bt_text_t *out)
{
    static const char *const heads[LISTS] = {
        "NAME             ROLE    ZONE     STATE          LIVE   TOKENS KV    TPOT ms",
        "REQUEST                  MODEL        WAY               STEP            AGE",
        "REQUEST                  MODEL        WAY               STATUS ERROR"};

    bt_text_printf(out, "%s\n", heads[list]);
}

/* Rows of the list from the one that keeps the chosen in sight; the line of the chosen one, -1: there is none. */
static int put_rows(top_t *t, bt_str_t rows, unsigned room, unsigned line, bt_text_t *out)
{
    static void (*const put[LISTS])(top_t *, bt_str_t, unsigned,
                                    bt_text_t *) = {put_worker, put_live, put_ended};
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t lines[1];
    unsigned n = 0;
    int marked = -1;

    const unsigned first = t->chosen[t->list] >= room ? t->chosen[t->list] - room + 1 : 0;
    bt_text_init(lines);
    if (bt_json_array(&c, rows) == 0)
        while (n < ROWS_MAX && bt_json_next(&c, &item) > 0) {
            lines->len = 0;
            put[t->list](t, item.value, n, lines);
            if (n >= first && n < first + room) {
                if (n == t->chosen[t->list])
                    marked = (int) (line + n - first);
                bt_text_put(out, bt_text_str(lines));
                bt_text_puts(out, "\n");
            }
            n++;
        }
    bt_text_fini(lines);
    t->counts[t->list] = n;
    return marked;
}

/* ---- the picture ---- */

static uint64_t sum_answers(bt_str_t now, uint64_t *failed_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    uint64_t sum = 0;
    int64_t value;

    if (bt_json_array(&c, fleet_get_raw(now, "answers")) == 0)
        for (unsigned i = 0; bt_json_next(&c, &item) > 0; i++)
            if (bt_json_i64(item.value, &value) == 0) {
                sum += (uint64_t) value;
                *failed_p += i == 5 ? (uint64_t) value : 0;
            }
    return sum;
}

static void note_rates(top_t *t, bt_str_t now)
{
    uint64_t failed = 0;
    const uint64_t answers = sum_answers(now, &failed), at_ms = fleet_get_number(now, "at_ms"),
                   events = fleet_get_number(fleet_get_raw(now, "counters"), "events");
    const double secs = (double) (at_ms - t->at_ms) / 1000;

    if (t->at_ms != 0 && at_ms > t->at_ms && answers >= t->answers && events >= t->events)
        snprintf(t->rates, sizeof t->rates, "   answers/s %.1f   5xx/s %.1f   events/s %.0f",
                 (double) (answers - t->answers) / secs, (double) (failed - t->failed) / secs,
                 (double) (events - t->events) / secs);
    t->answers = answers;
    t->failed = failed;
    t->events = events;
    t->at_ms = at_ms;
}

static void put_pools(bt_str_t now, bt_text_t *out)
{
    static const char *const roles[] = {"prefill", "decode", "hybrid", "encode"};
    bt_json_cursor_t c;
    bt_json_item_t item;
    char name[64];

    if (bt_json_array(&c, fleet_get_raw(now, "pools")) != 0)
        return;
    for (unsigned n = 0; n < 3 && bt_json_next(&c, &item) > 0; n++) {
        fleet_get(item.value, "name", name, sizeof name);
        bt_text_printf(out, "%s%s:", n > 0 ? "   " : "", name);
        for (unsigned i = 0; i < 4; i++) {
            const bt_str_t role = fleet_get_raw(item.value, roles[i]);
            if (fleet_get_number(role, "total") > 0)
                bt_text_printf(out, " %s %" PRIu64 "/%" PRIu64, roles[i],
                               fleet_get_number(role, "usable"), fleet_get_number(role, "total"));
        }
    }
}

/* Four lines above the rows, one below. */
static void put_top(top_t *t, bt_str_t told, bt_text_t *out)
{
    const bt_str_t now = fleet_get_raw(told, "now"), workers = fleet_get_raw(told, "workers");
    char version[64];

    fleet_get(now, "version", version, sizeof version);
    note_rates(t, now);
    bt_text_printf(out, "baton %s   live %" PRIu64 "%s\n", version, fleet_get_number(now, "live"),
                   t->rates);
    put_pools(now, out);
    bt_text_printf(out, "   in trouble %" PRIu64 "\n", fleet_get_number(workers, "troubled"));
    bt_text_printf(out, "%s\n", t->message);
    t->message[0] = '\0';
}

/* What the chosen list has; NULL-terminated text in reply when it is asked for apart. */
static bt_str_t rows_of(top_t *t, bt_str_t told, fleet_reply_t *ended, uint64_t *total_p)
{
    *ended = (fleet_reply_t){0};
    if (t->list == ENDED) {
        if (call(t, BT_GET, "/admin/explain?limit=100", ended) != 0)
            return BT_STR("");
        return fleet_get_raw(bt_text_str(&ended->body), "requests");
    }
    const bt_str_t section = fleet_get_raw(told, t->list == WORKERS ? "workers" : "requests");
    *total_p = fleet_get_number(section, "total");
    return fleet_get_raw(section, "rows");
}

static int make_picture(top_t *t, bt_str_t told, unsigned rows, bt_text_t *out)
{
    fleet_reply_t ended;
    uint64_t total = 0;
    int marked;

    put_top(t, told, out);
    const bt_str_t list = rows_of(t, told, &ended, &total);
    put_head(t->list, out);
    marked = put_rows(t, list, rows - 5, 4, out);
    for (unsigned used = 4 + (t->counts[t->list] < rows - 5 ? t->counts[t->list] : rows - 5);
         used < rows - 1; used++)
        bt_text_puts(out, "\n");
    bt_text_printf(out, "%s %u", titles[t->list], t->counts[t->list]);
    if (total > t->counts[t->list])
        bt_text_printf(out, " of %" PRIu64, total);
    bt_text_puts(out, "  Tab:list  j/k:choose  d:drain  c:cancel  e:explain  q:leave");
    fleet_reply_fini(&ended);
    return marked;
}

static void show(top_t *t)
{
    unsigned rows, cols;
    fleet_reply_t reply;
    bt_text_t out;
    int marked = -1;

    top_screen_size(&rows, &cols);
    bt_text_init(&out);
    if (call(t, BT_GET, "/admin/ui/state", &reply) == 0)
        marked = make_picture(t, bt_text_str(&reply.body), rows, &out);
    else
        bt_text_printf(&out, "%s\n\nq:leave", t->message);
    if (t->counts[t->list] > 0 && t->chosen[t->list] >= t->counts[t->list])
        t->chosen[t->list] = t->counts[t->list] - 1;
    top_screen_draw(bt_text_str(&out), marked);
    bt_text_fini(&out);
    fleet_reply_fini(&reply);
}

/* ---- keys ---- */

static const char *chosen_name(const top_t *t)
{
    return t->chosen[t->list] < t->counts[t->list] ? t->names[t->chosen[t->list]] : NULL;
}

static void act(top_t *t, const char *what, const char *before, const char *after)
{
    const char *name = chosen_name(t);
    char question[NAME_MAX + 64];
    fleet_reply_t reply;
    bt_text_t path;
    int key = TOP_KEY_NONE;

    if (name == NULL)
        return;
    snprintf(question, sizeof question, "%s %s? y: yes, another key: no", what, name);
    top_screen_draw(bt_str(question), 0);
    while (key == TOP_KEY_NONE && !top_screen_is_over())
        key = top_screen_key(PERIOD_MS);
    if (key != 'y')
        return;
    put_path(&path, before, name, after);
    if (call(t, BT_POST, path.data, &reply) == 0)
        snprintf(t->message, sizeof t->message, "%s %s: done", what, name);
    fleet_reply_fini(&reply);
    bt_text_fini(&path);
}

/* What steers a terminal goes; lines are broken at the right edge. */
static void put_story(bt_str_t story, bt_text_t *out)
{
    unsigned rows, cols;

    top_screen_size(&rows, &cols);
    while (story.n > 0) {
        const char *end = memchr(story.p, '\n', story.n);
        const bt_str_t line = {story.p, end != NULL ? (size_t) (end - story.p) : story.n};
        const bt_str_t cut = bt_str_cut(line, cols);
        const bool is_whole = cut.n == line.n || cut.n == 0;
        const size_t begin = out->len, taken = is_whole ? line.n + (end != NULL) : cut.n;
        bt_text_put(out, is_whole ? line : cut);
        if (out->failed)
            return;
        bt_str_tame(out->data + begin, out->len - begin);
        bt_text_puts(out, "\n");
        story = (bt_str_t){story.p + taken, story.n - taken};
    }
}

static void explain(top_t *t)
{
    const char *name = chosen_name(t);
    fleet_reply_t reply;
    bt_text_t path, text;

    if (name == NULL || t->list == WORKERS)
        return;
    put_path(&path, "/admin/explain/", name, "?format=text");
    if (call(t, BT_GET, path.data, &reply) == 0) {
        bt_text_init(&text);
        put_story(bt_text_str(&reply.body), &text);
        top_screen_draw(bt_text_str(&text), -1);
        bt_text_fini(&text);
        while (top_screen_key(PERIOD_MS) == TOP_KEY_NONE && !top_screen_is_over())
            ;
    }
    fleet_reply_fini(&reply);
    bt_text_fini(&path);
}

static void move(top_t *t, int by)
{
    const int last = t->counts[t->list] > 0 ? (int) t->counts[t->list] - 1 : 0,
              to = (int) t->chosen[t->list] + by;

    t->chosen[t->list] = (unsigned) (to < 0 ? 0 : to > last ? last : to);
}

/* False: leave. */
static bool take_key(top_t *t, int key)
{
    switch (key) {
    case 'q':
    case 3: /* Ctrl-C */
        return false;
    case '\t':
        t->list = (enum list)((t->list + 1) % LISTS);
        t->counts[t->list] = 0;
        break;
    case TOP_KEY_UP:
    case 'k':
        move(t, -1);
        break;
    case TOP_KEY_DOWN:
    case 'j':
        move(t, 1);
        break;
    case TOP_KEY_PAGE_UP:
        move(t, -10);
        break;
    case TOP_KEY_PAGE_DOWN:
        move(t, 10);
        break;
    case 'd':
        if (t->list == WORKERS && chosen_name(t) != NULL)
            act(t, t->are_draining[t->chosen[WORKERS]] ? "Undrain" : "Drain", "/admin/workers/",
                t->are_draining[t->chosen[WORKERS]] ? "/undrain" : "/drain");
        break;
    case 'c':
        if (t->list == LIVE)
            act(t, "Cancel", "/admin/requests/", "/cancel");
        break;
    case 'e':
    case '\r':
    case '\n':
        explain(t);
        break;
    default:
        break;
    }
    return true;
}

static int print_once(top_t *t)
{
    fleet_reply_t reply;
    bt_text_t out;
    int status = 0;

    bt_text_init(&out);
    if (call(t, BT_GET, "/admin/ui/state", &reply) == 0) {
        put_top(t, bt_text_str(&reply.body), &out);
        for (t->list = WORKERS; t->list < ENDED; t->list++) {
            const bt_str_t section = fleet_get_raw(bt_text_str(&reply.body),
                                                   t->list == WORKERS ? "workers" : "requests");
            put_head(t->list, &out);
            (void) put_rows(t, fleet_get_raw(section, "rows"), ROWS_MAX, 0, &out);
            bt_text_puts(&out, "\n");
        }
        fwrite(out.data, 1, out.len, stdout);
        status = bt_tool_flushed();
    } else {
        status = bt_tool_error(BT_TOOL_FAILED, "top: ", "%s", t->message);
    }
    bt_text_fini(&out);
    fleet_reply_fini(&reply);
    return status;
}

int fleet_top(const fleet_tool_t *tool)
{
    static top_t t; /* too large for a stack */
    bool goes_on = true;

    if (tool->count > 0)
        return bt_tool_error(BT_TOOL_WRONG, "top: ", "takes no words but flags");
    t.tool = tool;
    if (!top_screen_open())
        return print_once(&t);
    while (goes_on && !top_screen_is_over()) {
        const uint64_t next_ms = bt_clock_ms() + PERIOD_MS;
        int key;
        show(&t);
        do {
            const uint64_t now_ms = bt_clock_ms();
            key = top_screen_key(next_ms > now_ms ? (int) (next_ms - now_ms) : 0);
        } while (key == TOP_KEY_NONE && bt_clock_ms() < next_ms && !top_screen_is_over());
        goes_on = take_key(&t, key);
    }
    top_screen_close();
    return 0;
}

int bt_top(int argc, const char *const *argv)
{
    const char *words[64] = {"top"};

    if (argc > 62)
        return bt_tool_error(BT_TOOL_WRONG, "top: ", "too many words");
    for (int i = 0; i < argc; i++)
        words[i + 1] = argv[i];
    return bt_fleet_tool(argc + 1, words);
}
