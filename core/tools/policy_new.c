/* The two files are written whole or not at all: neither may exist before, and the first is taken back when the second fails. */
#include "tools/policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 512
#define NAME_MAX_BYTES 64

/* NAME stands for the policy's name in both. */
static const char policy_text[] =
    "-- NAME - least load, where a request weighs as much as some tokens.\n"
    "local params = {\n"
    "  request_tokens = { type = \"number\", min = 0, default = 100, doc = \"Tokens that a running "
    "request counts for.\" },\n"
    "}\n"
    "\n"
    "-- Called for each request. view lists the workers that can be chosen now; baton.* are "
    "native functions; nothing here can wait.\n"
    "local function plan(req, view, ctx)\n"
    "  local prefills = baton.pairable(view.prefill, view.decode) -- those that have a partner\n"
    "  if #prefills == 0 then -- no pair: workers that serve alone\n"
    "    return { kind = \"single\", worker = baton.argmin(view.hybrid, \"decode_tokens\", "
    "\"requests\") }\n"
    "  end\n"
    "  local prefill = baton.argmin(prefills, \"prefill_tokens\", \"requests\")\n"
    "  local partners = baton.compatible(view.decode, prefill)\n"
    "  local decode = baton.argmin_sum(partners, \"decode_tokens\", 1, \"requests\", "
    "ctx.params.request_tokens)\n"
    "  return { prefill = prefill, decode = decode }\n"
    "end\n"
    "\n"
    "return { api = 2, name = \"NAME\", version = \"1\", params = params, plan = plan }\n";

static const char spec_text[] =
    "-- baton policy test NAME_spec.lua: the real loader, sandbox and native functions; only the "
    "fleet is "
    "made up.\n"
    "local testing = require \"baton.testing\"\n"
    "local here = debug.getinfo(1, \"S\").source:match(\"^@(.*/)\") or \"./\"\n"
    "\n"
    "describe(\"NAME\", function()\n"
    "  it(\"spares the busy worker\", function()\n"
    "    local workers = testing.workers { prefill = 1, decode = 2 } -- p1, d1, d2\n"
    "    workers:set(\"d1\", { decode_tokens = 5000 })\n"
    "    assert.are.equal(\"d2\", testing.plan(testing.load(here .. \"NAME.lua\"), "
    "workers).decode)\n"
    "  end)\n"
    "\n"
    "  it(\"counts requests as much as its parameter says\", function()\n"
    "    local workers = testing.workers { prefill = 1, decode = 2 }\n"
    "    workers:set(\"d1\", { decode_tokens = 150, requests = 1 })\n"
    "    workers:set(\"d2\", { decode_tokens = 100, requests = 2 })\n"
    "    local policy = testing.load(here .. \"NAME.lua\", { request_tokens = 1000 })\n"
    "    assert.are.equal(\"d1\", testing.plan(policy, workers).decode)\n"
    "    policy = testing.load(here .. \"NAME.lua\", { request_tokens = 0 })\n"
    "    assert.are.equal(\"d2\", testing.plan(policy, workers).decode)\n"
    "  end)\n"
    "\n"
    "  it(\"serves workers that need no partner\", function()\n"
    "    assert.are.equal(\"h1\", testing.plan(testing.load(here .. \"NAME.lua\"), testing.workers "
    "{ "
    "hybrid = 1 }).worker)\n"
    "  end)\n"
    "end)\n";

static bool is_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && n <= NAME_MAX_BYTES && name[n] == '\0' && (name[0] < '0' || name[0] > '9');
}

static int write_file(const char *path, const char *text, const char *name)
{
    FILE *file = fopen(path, "wx");
    const char *mark;
    int rc;

    if (file == NULL)
        return bt_policy_tool_refuse("%s: %s", path,
                                     errno == EEXIST ? "is there already; nothing was written"
                                                     : strerror(errno));
    for (; (mark = strstr(text, "NAME")) != NULL; text = mark + strlen("NAME")) {
        fwrite(text, 1, (size_t) (mark - text), file);
        fputs(name, file);
    }
    fputs(text, file);
    rc = ferror(file) ? -1 : 0;
    if (fclose(file) != 0 || rc != 0) {
        unlink(path);
        bt_policy_tool_refuse("%s: cannot be written", path);
        return 1;
    }
    return 0;
}

int bt_policy_tool_new(int argc, const char *const *argv)
{
    const char *dir = argc == 2 ? argv[1] : ".";
    char path[PATH_BYTES], spec[PATH_BYTES];
    int rc;

    if (argc < 1 || argc > 2)
        return bt_policy_tool_refuse("policy new: a name, and maybe a folder");
    if (!is_name(argv[0]))
        return bt_policy_tool_refuse("policy new: '%.100s' is no name; lower-case letters, digits "
                                     "and _ make one, a letter first",
                                     argv[0]);
    if (snprintf(path, sizeof path, "%s/%s.lua", dir, argv[0]) >= (int) sizeof path ||
        snprintf(spec, sizeof spec, "%s/%s_spec.lua", dir, argv[0]) >= (int) sizeof spec)
        return bt_policy_tool_refuse("policy new: the path is too long");
    if (access(spec, F_OK) == 0)
        return bt_policy_tool_refuse("%s: is there already; nothing was written", spec);
    rc = write_file(path, policy_text, argv[0]);
    if (rc != 0)
        return rc;
    rc = write_file(spec, spec_text, argv[0]);
    if (rc != 0) {
        unlink(path);
        return rc;
    }
    printf("%s\n%s\nnext: baton policy check %s; baton policy test %s; baton run --policy %s ...\n",
           path, spec, path, spec, path);
    return bt_tool_flushed();
}
