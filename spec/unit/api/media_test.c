/* Which parts of a body are media, and as what part of a chat an encoder gets each. */
#include "api/media.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>

#define ROOM 3

static bt_arena_t arena;
static const char *why;

/* wanted: parts one after the other, a blank between them; NULL: refused. */
static void expect(enum bt_route route, const char *body, const char *wanted)
{
    bt_media_part_t parts[ROOM];
    bt_intent_t intent;
    char text[1024] = "";
    int n = 0;

    bt_arena_init(&arena);
    assert_int_equal(bt_intent_read(&intent, &arena, route, bt_str(body), &why), 0);
    why = NULL;
    const int count = bt_media_find(&intent, parts, ROOM, &why);
    for (int i = 0; i < count; i++) {
        const int from = n;
        n += snprintf(text + n, sizeof(text) - (size_t) n, "%s%.*s%.*s%.*s", i != 0 ? " " : "",
                      BT_STR_ARG(parts[i].before), BT_STR_ARG(parts[i].value),
                      BT_STR_ARG(parts[i].after));
        assert_int_equal(bt_media_size(&parts[i]), n - from - (i != 0));
    }
    if (wanted != NULL)
        assert_string_equal(text, wanted);
    assert_int_equal(count < 0 ? BT_E_INVAL : 0, wanted == NULL ? BT_E_INVAL : 0);
    bt_arena_fini(&arena);
}

#define CHAT(content) "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":" content "}]}"
#define INPUT(item) "{\"model\":\"m\",\"input\":" item "}"
#define IMAGE "{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://a\"},\"x\":1}"

static void test_parts_of_a_chat_go_as_they_stand(void **state)
{
    expect(BT_ROUTE_CHAT, CHAT("[{\"type\":\"text\",\"text\":\"t\"}," IMAGE ",7," IMAGE "]"),
           IMAGE);
    expect(BT_ROUTE_CHAT, CHAT("[{\"typ\\u0065\":\"video_url\"}]"),
           "{\"typ\\u0065\":\"video_url\"}");
    expect(BT_ROUTE_CHAT, CHAT("\"image_url\""), "");
    expect(BT_ROUTE_CHAT, CHAT("[{\"type\":\"input_image\",\"image_url\":\"u\"}]"), "");
    expect(
        BT_ROUTE_CHAT,
        CHAT("[{\"type\":\"audio_url\"},{\"type\":\"input_audio\"},{\"type\":"
             "\"video_url\"},{\"type\":\"image_url\"}]"),
        "{\"type\":\"audio_url\"} {\"type\":\"input_audio\"} {\"type\":\"video_url\"}"); /* ROOM */
}

#define AS_PART(url) "{\"type\":\"image_url\",\"image_url\":{\"url\":" url "}}"

static void test_images_of_responses_become_parts_of_a_chat(void **state)
{
    expect(BT_ROUTE_RESPONSES, INPUT("\"words\""), "");
    expect(BT_ROUTE_RESPONSES,
           INPUT("[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"t\"},"
                 "{\"type\":\"input_image\",\"detail\":\"low\",\"image_url\":\"data:\\u002b\"}]},"
                 "{\"type\":\"function_call_output\",\"output\":[{\"type\":\"input_image\","
                 "\"image_url\":\"b\"}]}]"),
           AS_PART("\"data:\\u002b\"") " " AS_PART("\"b\""));
    expect(BT_ROUTE_RESPONSES, INPUT("[{\"content\":[" IMAGE "]}]"), IMAGE);
    expect(BT_ROUTE_RESPONSES, INPUT("[{\"content\":\"t\",\"output\":\"t\"},7]"), "");
}

static void test_an_image_by_file_is_refused(void **state)
{
    expect(BT_ROUTE_RESPONSES,
           INPUT("[{\"content\":[{\"type\":\"input_image\",\"file_id\":\"f\"}]}]"), NULL);
    assert_non_null(strstr(why, "file_id"));
    expect(BT_ROUTE_RESPONSES,
           INPUT("[{\"content\":[{\"type\":\"input_image\",\"image_url\":{\"url\":\"u\"}}]}]"),
           NULL);
}

static void test_images_of_messages_are_refused(void **state)
{
    expect(BT_ROUTE_MESSAGES, CHAT("[{\"type\":\"text\",\"text\":\"image\"}]"), "");
    expect(BT_ROUTE_MESSAGES, CHAT("[{\"type\":\"image\",\"source\":{}}]"), NULL);
    assert_non_null(strstr(why, "ec_transfer_params"));
    expect(BT_ROUTE_MESSAGES,
           CHAT("[{\"type\":\"tool_result\",\"content\":[{\"type\":\"image\"}]}]"), NULL);
    expect(BT_ROUTE_MESSAGES, CHAT("[{\"type\":\"tool_result\",\"content\":\"image\"}]"), "");
}

static void test_other_routes_have_none(void **state)
{
    expect(BT_ROUTE_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"p\",\"messages\":[]}", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_of_a_chat_go_as_they_stand),
        cmocka_unit_test(test_images_of_responses_become_parts_of_a_chat),
        cmocka_unit_test(test_an_image_by_file_is_refused),
        cmocka_unit_test(test_images_of_messages_are_refused),
        cmocka_unit_test(test_other_routes_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
