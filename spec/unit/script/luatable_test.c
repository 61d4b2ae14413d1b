#include "base/sanitize.h"
#include "script/value/luatable.h"
#include "script_fixture.h"

#include <time.h>

static int load(const char *text, bt_value_t **root_p, char *err, size_t err_size)
{
    struct temp_file file;
    int rc;

    temp_write(&file, "baton.lua", text);
    rc = bt_lua_table_load(file.path, root_p, err, err_size);
    temp_remove(&file);
    return rc;
}

static void assert_refused_with(const char *text, const char *word)
{
    char err[512] = "";
    bt_value_t *root = NULL;

    assert_int_equal(load(text, &root, err, sizeof(err)), BT_E_CONFIG);
    assert_null(root);
    if (strstr(err, word) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", err, word);
}

static void reads_a_tree(void **state)
{
    char err[512] = "";
    bt_value_t *root = NULL;
    const bt_value_t *pool;

    setenv("BT_SPEC_PORT", "8998", 1);
    if (load("local shared = { 'a', 'b' }\n"
             "return { port = tonumber(env('BT_SPEC_PORT')), host = env('BT_SPEC_NONE', 'none'), "
             "on = true, off = false,\n"
             "  empty = {}, pools = { { name = ('x'):rep(3), tags = shared }, { name = 'y', tags = "
             "shared } } }",
             &root, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    assert_int_equal(root->type, BT_VALUE_TABLE);
    assert_int_equal(root->count, 6);
    for (unsigned i = 1; i < root->count; i++)
        assert_true(strcmp(root->items[i - 1].key, root->items[i].key) < 0);
    assert_true(bt_value_get(root, "port")->number == 8998);
    assert_string_equal(bt_value_get(root, "host")->string, "none");
    assert_int_equal(bt_value_get(root, "on")->type, BT_VALUE_BOOL);
    assert_true(bt_value_get(root, "on")->boolean);
    assert_false(bt_value_get(root, "off")->boolean);
    assert_int_equal(bt_value_get(root, "empty")->type, BT_VALUE_TABLE);
    assert_int_equal(bt_value_get(root, "empty")->count, 0);
    assert_int_equal(bt_value_get(root, "pools")->type, BT_VALUE_LIST);
    pool = &bt_value_get(root, "pools")->items[0];
    assert_string_equal(bt_value_get(pool, "name")->string, "xxx");
    assert_string_equal(bt_value_get(pool, "tags")->items[1].string, "b");
    assert_null(bt_value_get(root, "nope"));
    bt_value_free(root);
}

static void names_the_place_of_what_is_wrong(void **state)
{
    assert_refused_with("return { pools = { { workers = { f = print or function() end } } } }",
                        "baton.lua: pools[1].workers.f: a function value");
    assert_refused_with("local t = {} t.a = { t } return t", "a[1]: a table holds itself");
    assert_refused_with("return { [1] = 1, [3] = 3 }", "the returned table: keys must be");
    assert_refused_with("return { a = { 1, 2, x = 3 } }", "a: has both");
    assert_refused_with("return { [true] = 1 }", "keys must be");
    assert_refused_with("return { [2.5] = 1 }", "keys must be");
    assert_refused_with("return { x = 0/0 }", "x: is not a finite number");
    assert_refused_with("return { x = 1/0 }", "x: is not a finite number");
    assert_refused_with("return { x = 'a\\0b' }", "x: a string holds a NUL byte");
}

static void names_the_line_of_an_error(void **state)
{
    assert_refused_with("\nlocal x = nil + 1", "baton.lua:2:");
    assert_refused_with("return {\n a = \n}", "baton.lua:3:");
    assert_refused_with("local x = 1", "must return one table, not a nil value");
    assert_refused_with("return 'text'", "not a string value");
}

static void is_a_sandbox(void **state)
{
    assert_refused_with("return { x = os.getenv('HOME') }", "baton.lua:1:");
    assert_refused_with(
        "return { x = env('BT_SPEC_NONE') }",
        "baton.lua:1: the environment has no BT_SPEC_NONE; where it may be missing: "
        "env(\"BT_SPEC_NONE\", default)");
    assert_refused_with("return { x = io.open('/etc/passwd') }", "baton.lua:1:");
    assert_refused_with("return require('x')", "baton.lua:1:");
    assert_refused_with("return load('return {}')()", "baton.lua:1:");
}

static void cannot_run_for_ever(void **state)
{
    assert_refused_with("while true do end", "ran too long");
    assert_refused_with("while true do pcall(function() while true do end end) end",
                        "ran too long");
    assert_refused_with("local t = {} for i = 1, 32 do t = { t } end return t",
                        "nested more than 32 deep");
}

static void cannot_grow_without_end(void **state)
{
    char err[512];
    bt_value_t *root;
    unsigned tries = 0;

    do /* on a machine that has other work its time may be over first */
        assert_int_equal(load("local t = { 1 } for i = 1, 24 do t = { t, t } end return t", &root,
                              err, sizeof(err)),
                         BT_E_CONFIG);
    while (strstr(err, "ran over its budget") != NULL && ++tries < 20);
    assert_non_null(strstr(err, "too many values"));
}

/* ---- patterns ---- */

static void assert_loads(const char *text)
{
    char err[512] = "";
    bt_value_t *root = NULL;

    if (load(text, &root, err, sizeof(err)) != 0)
        fail_msg("%s: %s", text, err);
    bt_value_free(root);
}

/* What files do with a value of the environment, at sizes that they meet. */
static void usual_patterns_pass(void **state)
{
    assert_loads("local n, list = 0, ('http://10.0.0.1:8000, '):rep(400)\n"
                 "for url in list:gmatch('[^,]+') do\n"
                 "  url = url:match('^%s*(.-)%s*$')\n"
                 "  if url ~= '' then\n"
                 "    local host, port = url:match('^http://([^:/]+):?(%d*)')\n"
                 "    assert(host == '10.0.0.1' and port == '8000') n = n + 1 end end\n"
                 "assert(n == 400) return {}");
    assert_loads("local s = 'x' .. (' '):rep(4094) .. 'x'\n"
                 "assert(s:match('^%s*(.-)%s*$') == s) return {}");
    assert_loads(
        "local t = {}\n"
        "for k, v in ('key = value; '):rep(300):gmatch('(%w+)%s*=%s*(%w+)') do t[#t + 1] = v end\n"
        "assert(#t == 300) return t");
    assert_loads("assert(('/srv/models/llama-3/'):rep(100):gsub('/+$', '') ~= nil) return {}");
    assert_loads("local u = ('a'):rep(200) .. '/' .. ('b'):rep(2000)\n"
                 "local a, h, p, r = ('http://' .. u):match('^(%w+)://([^/:]+):?(%d*)(/?.*)$')\n"
                 "assert(h == ('a'):rep(200) and r == '/' .. ('b'):rep(2000)) return {}");
}

/* Exponential, and polynomial of a high degree; by each function, and where the error is caught. */
static void patterns_come_to_an_end(void **state)
{
    static const char *const calls[] = {
        "s:match(p)",
        "s:find(p)",
        "s:gsub(p, '')",
        "s:gmatch(p)()",
        "s:gsub('^' .. p, function() end)",
        "pcall(string.match, s, p)",
    };
    static const char *const patterns[] = {
        "local s, p = ('a'):rep(40), ('a?'):rep(40) .. ('a'):rep(40)",
        "local s, p = ('a'):rep(4000), ('.-'):rep(20) .. 'b'",
        "local s, p = ('ab'):rep(4000), '(.*)(.*)(.*)(.*)%1%2%3c'",
        "local s, p = ('('):rep(60000), '%b()'",
    };
    char text[512];

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        for (size_t k = 0; k < (i == 0 ? sizeof(calls) / sizeof(calls[0]) : 1); k++) {
            snprintf(text, sizeof(text), "%s\nwhile true do\n %s\nend", patterns[i], calls[k]);
            assert_refused_with(text, "baton.lua:");
        }
    /* What is put in takes time too, though nothing grows. */
    assert_refused_with("return { ('a'):rep(1e6):gsub('(b*)', ('%1'):rep(5e5)) }",
                        "baton.lua:1: string.gsub: the pattern takes too many steps");
    assert_refused_with("local t = ('x'):rep(1e6)\n"
                        "return { ('a'):rep(1e6):gsub('()', function() return t end) }",
                        "baton.lua:2: ");
    assert_refused_with("local s, p = ('a'):rep(40), ('a?'):rep(40) .. ('a'):rep(40)\n"
                        "return { s:match(p) }",
                        "baton.lua:2: string.match: the pattern takes too many steps");
}

/* ---- what is pushed ---- */

static void assert_push_refused(const char *text, const char *word)
{
    char err[512] = "";
    bt_value_t *root = NULL;
    int rc = bt_lua_table_read("fleet/rules.lua", bt_str(text), &root, err, sizeof(err));

    if (rc != BT_E_CONFIG || root != NULL)
        fail_msg("%s: %d", text, rc);
    if (strstr(err, word) == NULL || strstr(err, "fleet/rules.lua") != err)
        fail_msg("%s: \"%s\" does not hold \"%s\"", text, err, word);
}

static void a_pushed_text_is_data(void **state)
{
    static const char text[] =
        "local names, t = { 'b', 'a' }, {} table.sort(names)\n"
        "for i, n in ipairs(names) do t[i] = { name = n .. i, n = math.floor(1.5),\n"
        "  is = n:find('.', 1) == nil and n:rep(2) == n .. n } end return { list = t }";
    char err[512] = "";
    bt_value_t *root = NULL;

    if (bt_lua_table_read("x", bt_str(text), &root, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    assert_int_equal(bt_value_get(root, "list")->count, 2);
    assert_string_equal(bt_value_get(&bt_value_get(root, "list")->items[0], "name")->string, "a1");
    assert_true(bt_value_get(&bt_value_get(root, "list")->items[0], "is")->boolean);
    bt_value_free(root);
}

static void a_pushed_text_cannot_look_around(void **state)
{
    setenv("BT_SPEC_SECRET", "hunter2", 1);
    assert_push_refused("return { x = env('BT_SPEC_SECRET') }",
                        "env is not available to pushed code");
    assert_push_refused("return { x = ('a'):match('a') }",
                        "string.match is not available to pushed code");
    assert_push_refused("return { x = ('a'):gsub('a', 'b') }", "string.gsub is not available");
    assert_push_refused("for _ in ('a'):gmatch('a') do end return {}",
                        "string.gmatch is not available");
    assert_push_refused("return { x = os.getenv('HOME') }", "unknown name 'os'");
    assert_push_refused("return require('x')", "unknown name 'require'");
}

static double wall_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/* Whatever it does: an error of one line, soon. */
static void assert_ends(const char *const *texts)
{
    for (; *texts != NULL; texts++) {
        const double start_s = wall_s();
        assert_push_refused(*texts, "");
        if (wall_s() - start_s > 20) /* generous: sanitizers and busy machines */
            fail_msg("%s took %.1f s", *texts, wall_s() - start_s);
        print_message("%7.1f ms  %.80s\n", (wall_s() - start_s) * 1e3, *texts);
    }
}

static void a_pushed_text_comes_to_an_end(void **state)
{
    static const char *const texts[] = {
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() return f() + 1 end f()",
        "local t = {} while true do t[#t + 1] = {} end",
        "local s = 'x' while true do s = s .. s end",
        "while true do ('x'):rep(1000000) end",
        "local s, n = ('a'):rep(1000000), ('a'):rep(500000) .. 'b' while true do s:find(n) end",
        "local t = {} for i = 1, 200000 do t[i] = (i * 7919) % 200003 end while true do "
        "table.sort(t) "
        "t[1], t[200000] = t[200000], t[1] end",
        "local t = {} for i = 1, 1000 do t[i] = i end while true do table.sort(t, function() "
        "return "
        "true end) end",
        "local t = {} for i = 1, 60000 do t[i] = i / 7 end while true do table.concat(t) end",
        "local s = ('%.99f'):rep(99) while true do s:format(unpack({}, 1, 99)) end",
        "local f = ('%.99f'):rep(90) local t = {} for i = 1, 90 do t[i] = 1e308 end while true do "
        "f:format(unpack(t)) end",
        "local m = {} m.__index = function(t, k) return t[k + 1] end return setmetatable({}, m)[1]",
        "local m = setmetatable({}, { __concat = function() while true do end end }) return m .. m",
        "local m = {} m.__lt = function(a, b) return a < b end local a = setmetatable({}, m) "
        "return { a < setmetatable({}, m) }",
        "local o = setmetatable({}, { __tostring = function(o) return tostring(o) end }) "
        "tostring(o)",
        /* What is returned counts too. */
        "local t = { 1 } for i = 1, 24 do t = { t, t } end return t",
        "local s, t = ('x'):rep(1000000), {} for i = 1, 60000 do t[i] = s end return t",
        "local e, t = {}, {} for i = 1, 60000 do e['k' .. i] = i end\n"
        "for i = 1, 60000 do e['k' .. i] = nil end for i = 1, 60000 do t[i] = e end return { t, t "
        "}",
        NULL,
    };
    /* (TSan keeps the frames that errors jump over, until it has no room for more.) */
    static const char *const storms[] = {
        "local function f() pcall(f) pcall(f) end while true do f() end",
        "local t = {} while true do pcall(function() t[#t + 1] = ('x'):rep(1000000) .. #t end) end",
        "while true do pcall(string.rep, 'x', 1e9) end",
        NULL,
    };

    assert_ends(texts);
    if (!BT_TSAN)
        assert_ends(storms);
}

static void missing_file(void **state)
{
    char err[256] = "";
    bt_value_t *root = NULL;

    assert_int_equal(bt_lua_table_load("/nonexistent/b.lua", &root, err, sizeof(err)), BT_E_CONFIG);
    assert_string_equal(err, "/nonexistent/b.lua: cannot read: No such file or directory");
    bt_value_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_tree),
        cmocka_unit_test(names_the_place_of_what_is_wrong),
        cmocka_unit_test(names_the_line_of_an_error),
        cmocka_unit_test(is_a_sandbox),
        cmocka_unit_test(cannot_run_for_ever),
        cmocka_unit_test(cannot_grow_without_end),
        cmocka_unit_test(usual_patterns_pass),
        cmocka_unit_test(patterns_come_to_an_end),
        cmocka_unit_test(a_pushed_text_is_data),
        cmocka_unit_test(a_pushed_text_cannot_look_around),
        cmocka_unit_test(a_pushed_text_comes_to_an_end),
        cmocka_unit_test(missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
