/* What a signal's handler does here, write() and tcsetattr(), it may do. A killed process (SIGKILL) leaves its terminal raw: `reset`. */
#include "tools/top_screen.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\x1b[?1049h\x1b[?25l"
#define LEAVE "\x1b[0m\x1b[?25h\x1b[?1049l"

static struct termios before;
static volatile sig_atomic_t is_open, is_over;

/* Also in a signal's handler. */
static void put(const char *p, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(STDOUT_FILENO, p, n);
        if (done <= 0)
            return;
        p += done;
        n -= (size_t) done;
    }
}

void top_screen_close(void)
{
    if (!is_open)
        return;
    is_open = 0;
    put(LEAVE, sizeof LEAVE - 1);
    (void) tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
}

static void on_end(int signal)
{
    (void) signal;
    is_over = 1;
}

static void on_crash(int number)
{
    top_screen_close();
    (void) signal(number, SIG_DFL);
    (void) raise(number);
}

static void take_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT},
                     crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = on_end};

    for (unsigned i = 0; i < sizeof ends / sizeof ends[0]; i++)
        (void) sigaction(ends[i], &action, NULL);
    action.sa_handler = on_crash;
    for (unsigned i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        (void) sigaction(crashes[i], &action, NULL);
}

bool top_screen_open(void)
{
    struct termios raw;

    if (!isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) != 0)
        return false;
    raw = before;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    is_open = 1;
    (void) atexit(top_screen_close);
    take_signals();
    (void) tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    put(ENTER, sizeof ENTER - 1);
    return true;
}

bool top_screen_is_over(void)
{
    return is_over != 0;
}

void top_screen_size(unsigned *rows_p, unsigned *cols_p)
{
    struct winsize size = {0};

    (void) ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    *rows_p = size.ws_row >= 5 ? size.ws_row : 24;
    *cols_p = size.ws_col >= 20 ? size.ws_col : 80;
}

void top_screen_draw(bt_str_t text, int marked)
{
    unsigned rows, cols, row = 0;
    bt_text_t out;

    top_screen_size(&rows, &cols);
    bt_text_init(&out);
    bt_text_puts(&out, "\x1b[H");
    while (text.n > 0 && row < rows) {
        const char *end = memchr(text.p, '\n', text.n);
        const size_t n = end != NULL ? (size_t) (end - text.p) : text.n;
        bt_text_printf(&out, "%s%s", row > 0 ? "\r\n" : "", (int) row == marked ? "\x1b[7m" : "");
        bt_text_put(&out, bt_str_cut((bt_str_t){text.p, n}, cols));
        bt_text_puts(&out, "\x1b[0m\x1b[K");
        text = (bt_str_t){text.p + n + (end != NULL), text.n - n - (end != NULL)};
        row++;
    }
    bt_text_puts(&out, "\x1b[J");
    if (!out.failed)
        put(out.data, out.len);
    bt_text_fini(&out);
}

/* Keys that came faster than they were taken. */
static char keys[64];
static size_t key_count;

static void drop_keys(size_t n)
{
    key_count -= n;
    memmove(keys, keys + n, key_count);
}

/* ESC [ A and its like; ESC alone is a key of its own, and nobody's. */
static int take_key(void)
{
    const bool is_sequence =
        key_count >= 3 && keys[0] == '\x1b' && (keys[1] == '[' || keys[1] == 'O');
    const int first = (unsigned char) keys[0], last = is_sequence ? keys[2] : 0;

    if (key_count == 0)
        return TOP_KEY_NONE;
    if (last == '5' || last == '6') /* ESC [ 5 ~ */
        drop_keys(key_count >= 4 ? 4 : 3);
    else
        drop_keys(is_sequence ? 3 : 1);
    return !is_sequence  ? first
           : last == 'A' ? TOP_KEY_UP
           : last == 'B' ? TOP_KEY_DOWN
           : last == '5' ? TOP_KEY_PAGE_UP
           : last == '6' ? TOP_KEY_PAGE_DOWN
                         : TOP_KEY_NONE;
}

int top_screen_key(int timeout_ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

    if (key_count > 0 || poll(&in, 1, timeout_ms) <= 0)
        return take_key();
    const ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
    if (n > 0)
        key_count = (size_t) n;
    else if ((in.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
        is_over = 1;
    return take_key();
}
