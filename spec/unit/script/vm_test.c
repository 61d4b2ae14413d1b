#include "script/vm/vm.h"
#include "script_fixture.h"

static int run(bt_vm_t *vm, const char *text, char *err, size_t err_size)
{
    int rc = bt_vm_load(vm, bt_str(text), "@spec.lua", false, err, err_size);

    return rc != 0 ? rc : bt_vm_call(vm, 0, err, err_size);
}

static void assert_runs(bt_vm_t *vm, const char *text)
{
    char err[512] = "";

    if (run(vm, text, err, sizeof(err)) != 0)
        fail_msg("%s: %s", text, err);
}

static void assert_fails(bt_vm_t *vm, const char *text, const char *word)
{
    char err[512] = "";

    if (run(vm, text, err, sizeof(err)) == 0)
        fail_msg("%s did not fail", text);
    if (strstr(err, word) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", err, word);
}

/* Every way out of the sandbox that stock Lua has, by name. */
static void dangerous_names_are_gone(void **state)
{
    static const char *const names[] = {
        "io",        "os",     "package",    "debug",          "ffi",     "jit",
        "coroutine", "load",   "loadstring", "loadfile",       "dofile",  "require",
        "module",    "xpcall", "newproxy",   "collectgarbage", "getfenv", "setfenv",
        "_G",        "print",  "gcinfo"};
    char text[128];
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, 0), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(text, sizeof(text), "local x = %s", names[i]);
        assert_fails(&vm, text, "unknown name");
    }
    assert_runs(&vm, "assert(string.rep == nil and string.dump == nil and string.gsub == nil and "
                     "string.match == nil)");
    assert_runs(&vm, "assert(('x').rep == nil and ('x').gmatch == nil)");
    assert_runs(&vm, "assert(math.randomseed == nil and table.foreach == nil)");
    assert_runs(&vm, "assert(getmetatable('') == false)");
    bt_vm_close(&vm);
}

static void the_rest_works(void **state)
{
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, 0), 0);
    assert_runs(&vm, "local t = {3, 1, 2} table.sort(t) assert(table.concat(t, ',') == '1,2,3')");
    assert_runs(&vm, "assert(('%d/%s'):format(7, 'a') == '7/a' and bit.band(6, 3) == 2 and "
                     "math.floor(2.5) == 2)");
    assert_runs(&vm, "assert(not pcall(error, 'x')) assert(select('#', unpack({1, 2})) == 2)");
    assert_runs(&vm, "for _ = 1, 50 do local n = math.random(3, 5) assert(n >= 3 and n <= 5) end");
    assert_runs(&vm,
                "local x = math.random() assert(x >= 0 and x < 1) assert(math.random(1) == 1)");
    bt_vm_close(&vm);
}

static void find_is_plain(void **state)
{
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, 0), 0);
    assert_runs(&vm, "local a, b = ('a.b.c'):find('.', 3) assert(a == 4 and b == 4)");
    assert_runs(&vm, "assert(('abc'):find('a.c') == nil)");
    assert_runs(&vm, "local a, b = ('abc'):find('') assert(a == 1 and b == 0)");
    assert_runs(&vm, "assert(('abc'):find('c', -1) == 3 and ('abc'):find('a', -1) == nil and "
                     "('abc'):find('', 5) == nil)");
    bt_vm_close(&vm);
}

static void globals_cannot_be_made(void **state)
{
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, 0), 0);
    assert_fails(&vm, "counter = 1", "spec.lua:1: 'counter' would be a global");
    assert_fails(&vm, "\n\nlocal x = conter", "spec.lua:3: unknown name 'conter'");
    bt_vm_close(&vm);
}

static void memory_is_capped(void **state)
{
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 2 << 20, 0), 0);
    assert_fails(&vm, "local t = {} for i = 1, 1e9 do t[i] = {} end", "not enough memory");
    assert_fails(&vm, "local s = 'x' while true do s = s .. s end", "not enough memory");
    assert_true(vm.heap.used_bytes <= vm.heap.cap_bytes);
    assert_runs(&vm, "local t = {} for i = 1, 100 do t[i] = i end");
    bt_vm_close(&vm);
    assert_int_equal(vm.heap.used_bytes, 0);
}

static void bytecode_is_refused(void **state)
{
    bt_vm_t vm;
    char err[256] = "";

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, 0), 0);
    assert_int_equal(bt_vm_load(&vm, BT_STR("\x1bLJ\x02\x0a"), "@x", false, err, sizeof(err)),
                     BT_E_POLICY);
    assert_non_null(strstr(err, "wrong mode"));
    bt_vm_close(&vm);
}

static void require_knows_only_embedded_modules(void **state)
{
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, BT_VM_REQUIRE), 0);
    assert_runs(&vm, "local legs = require('baton.legs') assert(legs == require('baton.legs') and "
                     "legs.one_token)");
    assert_fails(&vm, "require('io')", "module 'io' does not exist");
    assert_fails(&vm, "require('baton.nope')", "module 'baton.nope' does not exist");
    assert_fails(&vm, "require('../../etc/passwd')", "does not exist");
    bt_vm_close(&vm);
}

static void errors_are_one_line(void **state)
{
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, 0), 0);
    assert_fails(&vm, "error('a\\nb')", "spec.lua:1: a b");
    assert_fails(&vm, "error({})", "error object is a table value");
    assert_fails(&vm, "local x = ", "spec.lua:1:");
    bt_vm_close(&vm);
}

/* What the compiler takes the square of the time for: twenty seconds and more. */
static void compiling_comes_to_an_end(void **state)
{
    const size_t n = 170000;
    char *text = malloc(7 + 6 * n + 1), err[256] = "";
    bt_vm_t vm;

    assert_non_null(text);
    memcpy(text, "return ", 7);
    for (size_t i = 0; i < n; i++)
        memcpy(text + 7 + 6 * i, "a and ", 6);
    memcpy(text + 7 + 6 * n, "", 1);
    assert_int_equal(bt_vm_open(&vm, NULL, 64 << 20, 0), 0);
    assert_int_equal(bt_vm_load(&vm, bt_str(text), "@spec.lua", false, err, sizeof(err)),
                     BT_E_POLICY);
    assert_string_equal(err, "spec.lua: it takes too long to compile; make it shorter");
    assert_runs(&vm, "local x = 1");
    bt_vm_close(&vm);
    free(text);
}

static void nearest_name(void **state)
{
    static const char *const names[] = {"prefill", "decode", "single", NULL};

    assert_string_equal(bt_vm_nearest(names, BT_STR("prefil")), "prefill");
    assert_string_equal(bt_vm_nearest(names, BT_STR("decoder")), "decode");
    assert_null(bt_vm_nearest(names, BT_STR("bananas")));
}

static void files_that_cannot_be_read(void **state)
{
    char err[256] = "", *text;
    size_t size;

    assert_int_equal(bt_vm_read_file("/nonexistent/x.lua", &text, &size, err, sizeof(err)),
                     BT_E_CONFIG);
    assert_string_equal(err, "/nonexistent/x.lua: cannot read: No such file or directory");
    assert_int_equal(bt_vm_read_file("/tmp", &text, &size, err, sizeof(err)), BT_E_CONFIG);
    assert_int_equal(bt_vm_read_file("/dev/zero", &text, &size, err, sizeof(err)), BT_E_CONFIG);
    assert_non_null(strstr(err, "too large"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dangerous_names_are_gone),
        cmocka_unit_test(the_rest_works),
        cmocka_unit_test(find_is_plain),
        cmocka_unit_test(globals_cannot_be_made),
        cmocka_unit_test(memory_is_capped),
        cmocka_unit_test(bytecode_is_refused),
        cmocka_unit_test(require_knows_only_embedded_modules),
        cmocka_unit_test(errors_are_one_line),
        cmocka_unit_test(compiling_comes_to_an_end),
        cmocka_unit_test(nearest_name),
        cmocka_unit_test(files_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
