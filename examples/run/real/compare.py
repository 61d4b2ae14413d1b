"""One request twice, through the gateway and to the plain server; what differs."""
import http.client
import time

from answers import read


def ask_both(case, gateway, plain, report_ms):
    """Faults of the gateway's answer, and its texts. report_ms gets the time that it took."""
    expected = read(case.api, plain.post(case.path, case.body))
    began = time.monotonic()
    try:
        got = read(case.api, gateway.post(case.path, case.body))
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return [f"no answer that can be read: {error!r}"], []
    finally:
        report_ms.append(round((time.monotonic() - began) * 1000))
    return differences(expected, got), list(got.texts.values())


def differences(expected, got):
    faults = list(got.faults)
    faults += ["plain engine: " + fault for fault in expected.faults]
    for what in ("texts", "reasons", "tokens"):
        wanted, found = getattr(expected, what), getattr(got, what)
        if wanted != found:
            faults.append(f"{what}: {found!r} instead of {wanted!r}")
    return faults


def monotony(texts):
    """A model that says the same to everybody would hide wrong KV."""
    return [] if len(set(texts)) > len(texts) // 2 else ["the answers are alike: nothing is proved"]


def wait_for(is_true, seconds):
    """Polls; True when it became true in time."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
