/* Our pattern functions beside LuaJIT's own, over patterns and texts made by chance: same answers. That they come to an end is
 * luatable_test.c's. */
#include "base/clock.h"
#include "base/sanitize.h"
#include "script/vm/pattern.h"
#include "script_fixture.h"

/* ThreadSanitizer keeps a frame of each C function that an error leaves, and has room for 65,536. */
#define SEEDS (BT_TSAN ? 5 : 50)
#define TRIES 400 /* of a seed, in the text below */

/* Runs in both. The generator is the same everywhere: products stay below 2^53. */
static const char by_chance[] =
    "local seed = ...\n"
    "local function random(n) seed = (seed * 16807) % 2147483647 return seed % n + 1 end\n"
    "local items = { 'a', 'b', '.', '%a', '%d', '%s', '%w', '%u', '%p', '%x', '%A', '%S', '%.', "
    "'%%', '[ab]', '[^ab]',\n"
    "  '[a-c]', '[%d_]', '[]a]', '[^]a]', '[a-]', '[%a-z]', '()', '(', ')', '%1', '%2', '%b()', "
    "'%bab', '%f[%w]', '%f[^a]',\n"
    "  '^', '$', '-', '[', '%', '%g', '%z', ']', ' ' }\n"
    "local repeats = { '', '', '', '*', '+', '-', '?' }\n"
    "local letters = { 'a', 'b', 'c', '1', '_', ' ', '(', ')', 'A', '.', '%', ']', '\\0' }\n"
    "local function make(from, more, most)\n"
    "  local t = {}\n"
    "  for i = 1, random(most) - 1 do t[i] = from[random(#from)] .. (more and more[random(#more)] "
    "or '') end\n"
    "  return table.concat(t)\n"
    "end\n"
    "local function show(ok, ...)\n"
    "  local t = { tostring(ok) }\n"
    "  for i = 1, ok and select('#', ...) or 0 do t[#t + 1] = tostring((select(i, ...))) end\n"
    "  return table.concat(t, '|')\n"
    "end\n"
    "local function all(s, p)\n"
    "  local t = {}\n"
    "  for a, b in string.gmatch(s, p) do t[#t + 1] = tostring(a) .. '/' .. tostring(b) end\n"
    "  return table.concat(t, ',')\n"
    "end\n"
    "local function upper(a, b) if a ~= 'a' then return tostring(a) .. '<' .. tostring(b) .. '>' "
    "end end\n"
    "local out = {}\n"
    "for i = 1, 400 do\n"
    "  local s, p = make(letters, nil, 14), (random(4) == 1 and '^' or '') .. make(items, repeats, "
    "6)\n"
    "  local r, init = make({ 'x', '%0', '%1', '%2', '%%', '%a' }, nil, 4), random(20) - 10\n"
    "  out[#out + 1] = table.concat({ s, p, r, init,\n"
    "    show(pcall(string.find, s, p)), show(pcall(string.find, s, p, init)), "
    "show(pcall(string.find, s, p, init, true)),\n"
    "    show(pcall(string.match, s, p)), show(pcall(string.match, s, p, init)), show(pcall(all, "
    "s, p)),\n"
    "    show(pcall(string.gsub, s, p, r)), show(pcall(string.gsub, s, p, '-', 2)), "
    "show(pcall(string.gsub, s, p, upper)),\n"
    "    show(pcall(string.gsub, s, p, { a = 'A', b = false, [''] = '!' })) }, ' # ')\n"
    "end\n"
    "return out\n";

/* Leaves the list of answers on the stack. */
static void answer(lua_State *L, int seed)
{
    if (luaL_loadstring(L, by_chance) != 0)
        fail_msg("%s", lua_tostring(L, -1));
    lua_pushinteger(L, seed);
    if (lua_pcall(L, 1, 1, 0) != 0)
        fail_msg("%s", lua_tostring(L, -1));
}

/* There may be a NUL in it. */
static bt_str_t answer_at(lua_State *L, int i)
{
    bt_str_t text;

    lua_rawgeti(L, -1, i);
    text = bt_vm_str(L, -1);
    lua_pop(L, 1);
    return text;
}

static void answers_are_those_of_the_stock_functions(void **state)
{
    lua_State *stock = luaL_newstate();
    unsigned hits = 0;
    bt_vm_t vm;

    luaL_openlibs(stock);
    assert_int_equal(bt_vm_open(&vm, NULL, 64 << 20, BT_VM_CONFIG), 0);
    vm.steps_left = UINT64_MAX;
    for (int seed = 1; seed <= SEEDS; seed++) {
        answer(stock, seed * 7919);
        answer(vm.L, seed * 7919);
        for (int i = 1; i <= TRIES; i++) {
            const bt_str_t theirs = answer_at(stock, i), ours = answer_at(vm.L, i);
            if (!bt_str_eq(theirs, ours))
                fail_msg("\nstock %.*s\nours  %.*s", BT_STR_ARG(theirs), BT_STR_ARG(ours));
            hits += bt_str_find(ours, BT_STR("# true|1|")) >= 0;
        }
        lua_settop(stock, 0);
        lua_settop(vm.L, 0);
    }
    print_message("%u of %d matched at the first byte\n", hits, SEEDS * TRIES);
    assert_true(hits > SEEDS * TRIES / 4);
    bt_vm_close(&vm);
    lua_close(stock);
}

static void run(bt_vm_t *vm, const char *text, const char *word)
{
    char err[512] = "";
    int rc = bt_vm_load(vm, bt_str(text), "@spec.lua", false, err, sizeof(err));

    if (rc == 0)
        rc = bt_vm_run(vm, 0, "the code", 10000000, bt_clock_us(), err, sizeof(err)) != BT_VM_DONE;
    if (word == NULL ? rc != 0 : rc == 0 || strstr(err, word) == NULL)
        fail_msg("%s: \"%s\", expected \"%s\"", text, err, word != NULL ? word : "success");
}

static void mistakes_are_named(void **state)
{
    bt_vm_t vm;

    assert_int_equal(bt_vm_open(&vm, NULL, 64 << 20, BT_VM_CONFIG), 0);
    assert_int_equal(bt_watchdog_start(), 0);
    vm.steps_left = 1000000;
    run(&vm, "('a'):match('%')", "spec.lua:1: malformed pattern (ends with '%')");
    run(&vm, "('a'):match('[a')", "malformed pattern (missing ']')");
    run(&vm, "('a'):match('[%')", "malformed pattern (missing ']')");
    run(&vm, "('a'):match('(a')", "unfinished capture");
    run(&vm, "('a'):match('a)')", "invalid pattern capture");
    run(&vm, "('a'):match('%1')", "invalid capture index");
    run(&vm, "('a'):match('%b')", "unbalanced pattern");
    run(&vm, "('a'):match('%fa')", "missing '[' after '%f'");
    run(&vm, "('a'):match(('()'):rep(33))", "too many captures");
    run(&vm, "('a'):rep(300):match(('a?'):rep(300))", "pattern too complex");
    run(&vm, "('a'):gsub('a', '%')", "the replacement ends with '%'");
    run(&vm, "('a'):gsub('a', '%2')", "invalid capture index");
    run(&vm, "('a'):gsub('a', print)", "string/function/table expected");
    run(&vm, "('a'):gsub('a', function() return {} end)", "invalid replacement value (a table)");
    run(&vm, "local function f() ('a'):gsub('a', f) end f()", "calls are nested too deep");
    /* A class of many bytes costs as many steps. */
    run(&vm, "local s = '[' .. ('b'):rep(10000) .. ']-c' ('b'):rep(10000):match(s)",
        "spec.lua:1: string.match: the pattern takes too many steps on a text of 10000 bytes");
    assert_int_equal(vm.steps_left, 0);
    run(&vm, "assert(('a.b'):find('.', 1, true) == 2)", NULL); /* no pattern */
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_stock_functions),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
