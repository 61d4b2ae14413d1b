/* redis_scripts.c - the texts. What they do is said in words in store_local.c, which does the same; both are under one suite of specs.
 *
 * How a type lies in Redis:
 *      counter, cell   a string
 *      lease           a hash: t = L, o owner, f fence, u end (server's ms; 0 = dropped). Kept for a minute after its end, so that the fence is not forgotten;
 *                      a fence is never below the server's ms, so that it grows over a lost key too
 *      window          a hash: t = W, w number of the window, n granted in it
 *      table           a hash: field -> "<end, 0 = for ever>:<value>". A field "t" holds a ":", so it is never taken for the mark of a lease or a window
 *      log             a stream: ids <epoch>-<number>, numbers without gaps, epoch = server's ms at the key's creation. So a reader sees a gap by arithmetic,
 *                      and sees a log that was lost and begun anew
 *
 * Servers before 7 replicate a script by its text, which TIME forbids; replicate_commands() asks for its effects instead, and newer ones do that anyway.
 * A TABLE_ALL on a server that takes no writes still reads: it removes what has run out by pcall.
 */
#include "store/redis_scripts.h"

#include "base/sha1.h"

#include <pthread.h>

#define NOW                                                                                        \
    "if redis.replicate_commands then redis.replicate_commands() end\n"                            \
    "local K = KEYS[1]\n"                                                                          \
    "local call = redis.call\n"                                                                    \
    "local t = call('TIME')\n"                                                                     \
    "local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"                                          \
    "local function whole(n) return string.format('%.0f', n) end\n"

/* The hash is of this mark, or there is none. */
#define MARK(mark, fields)                                                                         \
    "local h = call('HMGET', K, 't', " fields ")\n"                                                \
    "if h[1] ~= '" mark "' and (h[1] or call('EXISTS', K) == 1) then\n"                            \
    "  return redis.error_reply('WRONGTYPE the key holds another type')\n"                         \
    "end\n"

/* A value without "<until>:" is not ours: nobody reads it, only its field's writer touches it. */
#define TABLE                                                                                      \
    "local mark = call('HGET', K, 't')\n"                                                          \
    "if mark == 'L' or mark == 'W' then\n"                                                         \
    "  return redis.error_reply('WRONGTYPE the key holds another type')\n"                         \
    "end\n"                                                                                        \
    "local function cut(v)\n"                                                                      \
    "  local _, at = string.find(v, '^%d+:')\n"                                                    \
    "  if at then return tonumber(string.sub(v, 1, at - 1)), string.sub(v, at + 1) end\n"          \
    "end\n"                                                                                        \
    "local function rows()\n"                                                                      \
    "  local all, kept = call('HGETALL', K), {}\n"                                                 \
    "  for i = 1, #all, 2 do\n"                                                                    \
    "    local till, value = cut(all[i + 1])\n"                                                    \
    "    if till and (till == 0 or till > now) then\n"                                             \
    "      kept[#kept + 1] = all[i]\n"                                                             \
    "      kept[#kept + 1] = value\n"                                                              \
    "    elseif till then\n"                                                                       \
    "      redis.pcall('HDEL', K, all[i])\n"                                                       \
    "    end\n"                                                                                    \
    "  end\n"                                                                                      \
    "  return kept\n"                                                                              \
    "end\n"

/* The key lives as long as its longest field; every 64th new field of a large table pays for those that have run out. */
#define PUT                                                                                        \
    "local ttl = tonumber(ARGV[3])\n"                                                              \
    "local was = call('PTTL', K)\n"                                                                \
    "local till = ttl > 0 and whole(now + ttl) or '0'\n"                                           \
    "local is_new = call('HSET', K, ARGV[1], till .. ':' .. ARGV[2])\n"                            \
    "if ttl == 0 then\n"                                                                           \
    "  if was >= 0 then call('PERSIST', K) end\n"                                                  \
    "elseif was ~= -1 and was < ttl then\n"                                                        \
    "  call('PEXPIRE', K, ARGV[3])\n"                                                              \
    "end\n"                                                                                        \
    "if is_new == 1 and call('HLEN', K) % 64 == 0 then rows() end\n"

static const char counter_add[] = "local had = redis.call('EXISTS', KEYS[1])\n"
                                  "redis.call('INCRBY', KEYS[1], ARGV[1])\n"
                                  "if had == 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end\n"
                                  "return redis.call('GET', KEYS[1])\n";

static const char lease_take[] =
    NOW MARK("L", "'o', 'f', 'u'") "local fence = tonumber(h[3] or 0)\n"
                                   "if h[2] and now < tonumber(h[4]) then\n"
                                   "  if h[2] ~= ARGV[1] then return {0, h[2]} end\n"
                                   "else\n"
                                   "  fence = math.max(fence + 1, now)\n"
                                   "end\n"
                                   "local ttl = tonumber(ARGV[2])\n"
                                   "call('HSET', K, 't', 'L', 'o', ARGV[1], 'f', whole(fence), "
                                   "'u', whole(now + ttl))\n"
                                   "call('PEXPIRE', K, whole(ttl + 60000))\n"
                                   "return {fence}\n";

static const char lease_drop[] =
    NOW MARK("L", "'o', 'u'") "if h[2] ~= ARGV[1] or now >= tonumber(h[3]) then return 0 end\n"
                              "call('HSET', K, 'u', '0')\n"
                              "call('PEXPIRE', K, '60000')\n"
                              "return 1\n";

/* A clock that was set back by less than a window goes on in the window that was. */
#define WINDOW                                                                                     \
    "local w = math.floor(now / ms)\n"                                                             \
    "local held, used = tonumber(h[2] or -1), tonumber(h[3] or 0)\n"                               \
    "if held == w + 1 then w = held end\n"

static const char window_take[] = NOW MARK(
    "W", "'w', 'n'") "local limit, ms, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), "
                     "tonumber(ARGV[3])\n" WINDOW "if held ~= w then used = 0 end\n"
                     "local granted = math.max(0, math.min(amount, limit - used))\n"
                     "local left = (w + 1) * ms - now\n"
                     "if granted > 0 then\n"
                     "  call('HSET', K, 't', 'W', 'w', whole(w), 'n', whole(used + granted))\n"
                     "  call('PEXPIRE', K, whole(left))\n"
                     "end\n"
                     "return {granted, w, left, math.max(0, limit - used - granted)}\n";

static const char window_give[] =
    NOW MARK("W", "'w', 'n'") "local ms, amount, given = tonumber(ARGV[1]), tonumber(ARGV[2]), "
                              "tonumber(ARGV[3])\n" WINDOW
                              "if held ~= given or w ~= given then return 0 end\n"
                              "local back = math.min(amount, used)\n"
                              "call('HSET', K, 'n', whole(used - back))\n"
                              "return back\n";

static const char table_put[] = NOW TABLE PUT "return 1\n";

static const char table_drop[] = NOW TABLE "local v = call('HGET', K, ARGV[1])\n"
                                           "if not v then return 0 end\n"
                                           "local till = cut(v)\n"
                                           "call('HDEL', K, ARGV[1])\n"
                                           "return till and (till == 0 or till > now) and 1 or 0\n";

static const char table_all[] = NOW TABLE "return rows()\n";

static const char table_sync[] = NOW TABLE PUT "return rows()\n";

static const char log_add[] =
    NOW "local last = call('XREVRANGE', K, '+', '-', 'COUNT', 1)\n"
        "local id = whole(now) .. '-1'\n"
        "if last[1] then\n"
        "  local epoch, number = string.match(last[1][1], '^(%d+)%-(%d+)$')\n"
        "  id = epoch .. '-' .. whole(number + 1)\n"
        "end\n"
        "return call('XADD', K, 'MAXLEN', ARGV[2], id, 'v', ARGV[1])\n";

static const char log_read[] =
    "local K, at = KEYS[1], ARGV[1]\n"
    "local function ends(name, from, to)\n"
    "  local e = redis.call(name, K, from, to, 'COUNT', 1)[1]\n"
    "  return e and e[1]\n"
    "end\n"
    "local first, last = ends('XRANGE', '-', '+'), ends('XREVRANGE', '+', '-')\n"
    "if not first then\n"
    "  return {'0-0', (at == '' or at == '0' or at == '0-0') and 0 or 1}\n"
    "end\n"
    "if at == '' then return {last, 0} end\n"
    "local function cut(id)\n"
    "  local epoch, number = string.match(id, '^(%d+)%-(%d+)$')\n"
    "  return epoch, tonumber(number)\n"
    "end\n"
    "local from, gap = '-', 0\n"
    "local epoch, oldest = cut(first)\n"
    "local _, newest = cut(last)\n"
    "if at == '0-0' then\n"
    "  gap = oldest > 1 and 1 or 0\n"
    "elseif at ~= '0' then\n"
    "  local e, n = cut(at)\n"
    "  if e ~= epoch or n + 1 < oldest or n > newest then\n"
    "    gap = 1\n"
    "  else\n"
    "    from = epoch .. '-' .. string.format('%.0f', n + 1)\n"
    "  end\n"
    "end\n"
    "local out = {at, gap}\n"
    "for _, e in ipairs(redis.call('XRANGE', K, from, '+', 'COUNT', ARGV[2])) do\n"
    "  out[1] = e[1]\n"
    "  out[#out + 1] = e[1]\n"
    "  out[#out + 1] = e[2][2]\n"
    "end\n"
    "return out\n";

static const char probe[] = "return redis.call('SET', KEYS[1], '1', 'PX', 1000)\n";

#define SCRIPT(text)                                                                               \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }
static const bt_str_t texts[BT_REDIS_SCRIPT_COUNT] = {
    [BT_REDIS_COUNTER_ADD] = SCRIPT(counter_add), [BT_REDIS_LEASE_TAKE] = SCRIPT(lease_take),
    [BT_REDIS_LEASE_DROP] = SCRIPT(lease_drop),   [BT_REDIS_WINDOW_TAKE] = SCRIPT(window_take),
    [BT_REDIS_WINDOW_GIVE] = SCRIPT(window_give), [BT_REDIS_TABLE_PUT] = SCRIPT(table_put),
    [BT_REDIS_TABLE_DROP] = SCRIPT(table_drop),   [BT_REDIS_TABLE_ALL] = SCRIPT(table_all),
    [BT_REDIS_TABLE_SYNC] = SCRIPT(table_sync),   [BT_REDIS_LOG_ADD] = SCRIPT(log_add),
    [BT_REDIS_LOG_READ] = SCRIPT(log_read),       [BT_REDIS_PROBE] = SCRIPT(probe)};

static char shas[BT_REDIS_SCRIPT_COUNT][BT_SHA1_HEX + 1];
static pthread_once_t shas_once = PTHREAD_ONCE_INIT;

static void name_all(void)
{
    for (unsigned i = 0; i < BT_REDIS_SCRIPT_COUNT; i++)
        bt_sha1_hex(texts[i], shas[i]);
}

bt_str_t bt_redis_script_text(enum bt_redis_script script)
{
    return texts[script];
}

bt_str_t bt_redis_script_sha(enum bt_redis_script script)
{
    pthread_once(&shas_once, name_all);
    return (bt_str_t){shas[script], BT_SHA1_HEX};
}
