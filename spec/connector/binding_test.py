"""The binding against the header: sizes and places of all structs, numbers of enums, functions, errors."""
import os
import re
import subprocess
import tempfile
import unittest
from unittest import mock

import paths
from vllm_connector import baton_kv

HEADER = os.path.join(paths.ROOT, "transport", "baton_kv.h")
ENUMS = {"BT_KV_FAILED": baton_kv.FAILED, "BT_KV_BOOTSTRAPPING": baton_kv.BOOTSTRAPPING,
         "BT_KV_WAITING_FOR_INPUT": baton_kv.WAITING_FOR_INPUT, "BT_KV_TRANSFERRING": baton_kv.TRANSFERRING,
         "BT_KV_SUCCESS": baton_kv.SUCCESS, "BT_KV_PIECES_MAX": baton_kv.PIECES_MAX, "BT_KV_PROGRESS_THREAD": 0,
         "BT_KV_RECEIVERS_OF_GATEWAY": baton_kv.RECEIVERS_OF_GATEWAY,
         **{"BT_KV_" + name.upper(): bit for name, bit in baton_kv.BACKENDS.items()}}


def compiled(lines):
    """What a C program that includes the header prints, a number a line."""
    body = "".join(f'    printf("%lld\\n", (long long) ({line}));\n' for line in lines)
    text = f'#include <stdio.h>\n#include "{HEADER}"\nint main(void)\n{{\n{body}    return 0;\n}}\n'
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        subprocess.run([os.environ.get("CC", "cc"), "-o", program, source], check=True, env=clean)
        return [int(line) for line in subprocess.check_output([program], text=True, env=clean).split()]


class Layout(unittest.TestCase):
    def test_structs_are_the_headers(self):
        asked, expected = [], []
        for name, struct in baton_kv.STRUCTS.items():
            asked.append(f"sizeof({name})")
            expected.append(baton_kv.ctypes.sizeof(struct))
            for field, *_ in struct._fields_:
                descriptor = getattr(struct, field)
                asked += [f"offsetof({name}, {field})", f"sizeof((({name} *) 0)->{field})"]
                expected += [descriptor.offset, descriptor.size]
        self.assertEqual(list(zip(asked, compiled(asked))), list(zip(asked, expected)))

    def test_every_field_of_the_header_is_bound(self):
        with open(HEADER, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        for name, struct in baton_kv.STRUCTS.items():
            body = re.search(r"typedef struct \w+ \{([^}]*)\} " + name, text).group(1)
            fields = [re.sub(r"\[.*?\]", "", one).replace("*", " ").split()[-1]
                      for line in body.split(";") if line.strip() for one in line.split(",")]
            self.assertEqual(fields, [field for field, *_ in struct._fields_], name)

    def test_numbers_are_the_headers(self):
        self.assertEqual(dict(zip(ENUMS, compiled(list(ENUMS)))), ENUMS)

    def test_functions_are_in_the_header(self):
        with open(HEADER, encoding="utf-8") as file:
            declared = set(re.findall(r"\b(bt_kv_\w+)\(", file.read()))
        self.assertEqual(set(baton_kv.FUNCTIONS) - declared, set())


class Library(unittest.TestCase):
    def test_again_is_the_librarys_number(self):
        library = baton_kv.load_library()
        self.assertEqual(library.bt_kv_error_text(baton_kv.AGAIN), b"try again")

    def test_a_name_that_leads_nowhere_is_told(self):
        with mock.patch.dict(os.environ, {"BATON_KV_LIBRARY": "/nowhere/libbaton_kv.so"}):
            with self.assertRaisesRegex(FileNotFoundError, "/nowhere/libbaton_kv.so: correct BATON_KV_LIBRARY"):
                baton_kv.load_library()

    def test_no_library_at_all_is_told(self):
        with mock.patch.dict(os.environ), mock.patch("os.path.exists", return_value=False), \
                mock.patch("ctypes.util.find_library", return_value=None):
            os.environ.pop("BATON_KV_LIBRARY", None)
            with self.assertRaisesRegex(FileNotFoundError, "make build"):
                baton_kv.find_library()

    def test_what_is_asked_for_wins(self):
        with mock.patch.dict(os.environ, {"BATON_KV_LIBRARY": "/nowhere"}):
            self.assertEqual(baton_kv.find_library(__file__), __file__)

    def test_a_library_without_a_function_is_told(self):
        with mock.patch.dict(baton_kv.FUNCTIONS, {"bt_kv_of_tomorrow": (None,)}):
            with self.assertRaisesRegex(ImportError, "has no bt_kv_of_tomorrow"):
                baton_kv.load_library()


class Errors(unittest.TestCase):
    def setUp(self):
        self.agent = baton_kv.Agent("errors", backends=["tcp"])
        self.addCleanup(self.agent.close)

    def test_a_bad_setting_is_told_by_the_library(self):
        with self.assertRaises(baton_kv.KvError) as caught:
            baton_kv.Agent("bad", host="not-a-number")
        self.assertIn("not-a-number", str(caught.exception))

    def test_a_bad_argument_is_an_exception(self):
        with self.assertRaisesRegex(baton_kv.KvError, "receiver of room 5: invalid argument"):
            self.agent.open_receiver(5, layout=1, pages=[0], sources=[("127.0.0.1", 1)])

    def test_a_handle_of_nobody_is_failed_and_free(self):
        self.assertEqual(self.agent.states([12345]), [baton_kv.FAILED])
        self.assertTrue(self.agent.release(12345))

    def test_closing_twice_is_once(self):
        self.agent.close()
        self.agent.close()


if __name__ == "__main__":
    unittest.main()
