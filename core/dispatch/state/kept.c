#include "dispatch/state/kept.h"

#include "dispatch/state/dispatch_state.h"

static int make_room(bt_kept_t *kept, size_t need)
{
    bt_buf_t *own;

    if (kept->is_own) {
        kept->buf->len = kept->text.n;
        return kept->buf->cap >= need ? 0 : bt_buf_grow(&kept->buf, 2 * need);
    }
    own = bt_buf_new(2 * need);
    if (own == NULL)
        return BT_E_NOMEM;
    memcpy(own->data, kept->text.p, kept->text.n);
    bt_buf_unref(kept->buf);
    kept->buf = own;
    kept->is_own = true;
    return 0;
}

int bt_kept_add(bt_kept_t *kept, const bt_dispatch_shared_t *shared, bt_buf_t *buf, bt_str_t piece)
{
    const size_t need = kept->text.n + piece.n;

    if (kept->buf == NULL) {
        kept->buf = bt_buf_ref(buf);
        kept->text = piece;
        return 0;
    }
    if (!bt_dispatch_shared_fits(shared, piece.n) || make_room(kept, need) < 0)
        return BT_E_NOMEM;
    memcpy(kept->buf->data + kept->text.n, piece.p, piece.n);
    kept->text = (bt_str_t){kept->buf->data, need};
    return 0;
}

void bt_kept_drop(bt_kept_t *kept)
{
    bt_buf_unref(kept->buf);
    *kept = (bt_kept_t){.text = BT_STR("")};
}
